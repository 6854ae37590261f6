"""The prefix of a recorded conversation: system prompt and tools, which most recordings lack.

Every request begins with them, so they are part of every bill. The prefix is taken from the
recording if it is there. Otherwise the usage of the first reply shows its size: everything that was
reported beyond the messages. A recording with neither is given an assumed prefix.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from ..tokens import TokenCounter
from ..tokens.billed import context_tokens
from .transcripts import Transcript

PREFIX_TOKENS = 29_000
"""Reported tokens of system prompt and tools that are assumed where a recording does not show them.

It is the median of 23 recorded sessions of coding agents with usage (15,000 to 42,000).
"""
MAX_PROMPT_TOKENS = 10**7
"""A usage that reports more is no usage."""
MIN_REPORTED_SHARE = 0.5
"""A usage that reports a smaller share of the counted tokens is not that of these messages."""
MAX_PREFIX_TOKENS = 200_000
"""A prefix that seems to be longer is no prefix: the recording lacks messages."""

Origin: TypeAlias = Literal["recording", "usage", "assumption"]

_WORD = " a"  # a token of tiktoken
_PROBE_WORDS = 1_000


@dataclass(frozen=True, slots=True)
class Prefix:
    """The size of a prefix in reported tokens, and where it is known from.

    *system* is the system prompt that stands in for it; the tools of the transcript follow it.
    """

    tokens: float
    origin: Origin
    system: object = field(default=None, repr=False)


def read_prefix(
    transcript: Transcript, counter: TokenCounter, assumed_tokens: float, tokens_per_raw: float
) -> Prefix:
    """Return the prefix of *transcript*; *assumed_tokens* are used if nothing shows its size.

    *tokens_per_raw* is the number of reported tokens for a token that *counter* counts.
    """
    recorded_raw = counter.total([], system=transcript.system, tools=transcript.tools)
    recorded_tokens = recorded_raw * tokens_per_raw
    reported_tokens = _prefix_by_usage(transcript, counter, tokens_per_raw)
    if reported_tokens is not None:
        tokens = max(reported_tokens, recorded_tokens)
        origin: Origin = "usage"
    elif recorded_raw:
        return Prefix(recorded_tokens, "recording", transcript.system)
    else:
        tokens = assumed_tokens
        origin = "assumption"
    missing_raw = round((tokens - recorded_tokens) / tokens_per_raw)
    system = _with_filler(transcript.system, missing_raw, counter)
    raw = counter.total([], system=system, tools=transcript.tools)
    return Prefix(raw * tokens_per_raw, origin, system)


def _prefix_by_usage(
    transcript: Transcript, counter: TokenCounter, tokens_per_raw: float
) -> float | None:
    """Return the tokens that the first usage reports beyond the messages; None without a usage."""
    for index in transcript.replies:
        reported_tokens = context_tokens(transcript.usages.get(index))
        if 0 < reported_tokens <= MAX_PROMPT_TOKENS:
            raw = counter.total(transcript.messages[:index])
            tokens = reported_tokens - raw * tokens_per_raw
            # Some APIs count fewer tokens than *tokens_per_raw*, but no prompt has far fewer.
            if reported_tokens < MIN_REPORTED_SHARE * raw or tokens > MAX_PREFIX_TOKENS:
                return None
            return max(0.0, tokens)
    return None


def _with_filler(system: object, raw_tokens: int, counter: TokenCounter) -> object:
    """Return *system* followed by a text of about *raw_tokens* tokens."""
    if raw_tokens <= 0:
        return system
    probe = counter.total([], system=_WORD * _PROBE_WORDS)
    text = _WORD * round(raw_tokens * _PROBE_WORDS / probe)
    filler = {"type": "text", "text": text}
    if isinstance(system, str):
        return [{"type": "text", "text": system}, filler]
    if isinstance(system, list):
        return [*system, filler]
    return [filler]
