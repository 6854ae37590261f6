"""Prompts that a server has cut without an error, as the usage of its replies shows.

Some servers, such as Ollama, drop the beginning or the middle of a prompt that is longer than their
window, answer the rest, and report the tokens of the rest:

    sent, as counted    12,000   30,000   50,000
    reported            11,800   29,500   16,386      the last prompt was cut
    largest accepted    11,800   29,500   29,500      so the window is taken to be 29,500

A usage that is far below the count can have other reasons. Media and thinking may cost less than
they are counted, so they do not count here. A tokenizer may need fewer tokens for some scripts, so
the ratio that earlier replies showed is the measure, and without one a text with few ASCII
characters is judged with more care. A server may report only the tokens that it has not cached, so
a usage is ignored if the new messages alone explain it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ..messages import Message, kind
from .billed import cached_tokens, context_tokens
from .counter import TokenCounter
from .parts import content_parts

MIN_REPORTED_TOKENS = 1_000
"""A usage that reports less is not that of a whole prompt: no server has so small a window."""
CUT_SHARE = 0.5
"""A prompt was cut if the usage reports less than this share of what it should."""
GROWN_SHARE = 0.8
"""The same for a prompt that has grown beyond the largest accepted one, and is not reported so."""
OTHER_SCRIPTS_SHARE = 0.2
"""The same for a text with few ASCII characters, while no earlier usage shows its ratio."""
MAX_GROWTH = 1.02
"""A reported prompt of up to so many times the largest accepted one has not grown."""
MIN_ASCII_SHARE = 0.8
MIN_SAMPLE_TOKENS = 500
"""Counted tokens of a prompt from which on its ratio is measured."""
MAX_UNCACHED_SHARE = 2.0
"""A usage of up to so many times the new tokens may be that of the uncached tokens alone."""


@dataclass(slots=True)
class _Accepted:
    """Facts from earlier replies of one model: the *largest* accepted prompt, and their *ratio*.

    *ratio* is the largest number of reported tokens for a counted one, at most 1; None before the
    first. *largest* is in reported tokens, *largest_counted* the count of that prompt, *counted*
    that of the last prompt.
    """

    largest: int = 0
    largest_counted: int = 0
    ratio: float | None = None
    counted: int = 0

    def add(self, reported: int, counted: int) -> None:
        """Record a prompt that was accepted whole."""
        if reported > self.largest * MAX_GROWTH:
            self.largest_counted = counted
        self.largest = max(self.largest, reported)
        if counted >= MIN_SAMPLE_TOKENS:
            self.ratio = max(min(1.0, reported / counted), self.ratio or 0.0)

    def min_share(self, reported: int, counted: int) -> float:
        """Return the share of the counted tokens below which a report shows that a prompt was cut.

        A prompt that was reported as the largest of all is whole.
        """
        if self.ratio is None:
            return CUT_SHARE
        if reported > self.largest * MAX_GROWTH:
            return 0.0
        has_grown = counted >= self.largest_counted
        return (GROWN_SHARE if has_grown else CUT_SHARE) * self.ratio


@dataclass(slots=True)
class SilentCuts:
    """Comparison of the usages of one conversation with the prompts that were sent."""

    _accepted: dict[str | None, _Accepted] = field(default_factory=dict)

    def window(
        self,
        usage: object,
        messages: Sequence[Message],
        counter: TokenCounter,
        *,
        counted_tokens: int,
        overhead: int = 0,
        model: str | None = None,
    ) -> int | None:
        """Return the window that *usage* shows, if the prompt was cut; None if it was not.

        *usage* is that of the reply to *messages*, by *model*. *counted_tokens* are those of the
        whole prompt as *counter* counts them, *overhead* those of system prompt and tools.
        """
        reported = context_tokens(usage)
        accepted = self._accepted.setdefault(model, _Accepted())
        new_tokens = counted_tokens - accepted.counted
        accepted.counted = counted_tokens
        if not reported:
            return None
        if not self._is_cut(usage, messages, counter, accepted, counted_tokens, overhead):
            accepted.add(reported, counted_tokens)
            return None
        if reported < MIN_REPORTED_TOKENS:
            return None
        if accepted.largest and 0 < reported <= MAX_UNCACHED_SHARE * max(0, new_tokens):
            return None
        return max(reported, accepted.largest)

    @staticmethod
    def _is_cut(
        usage: object,
        messages: Sequence[Message],
        counter: TokenCounter,
        accepted: _Accepted,
        counted_tokens: int,
        overhead: int,
    ) -> bool:
        """Return True if *usage* reports far fewer tokens than the text of *messages* has."""
        reported = context_tokens(usage)
        share = accepted.min_share(reported, counted_tokens)
        # A server with a cache reports what it has read from it, too, and cuts nothing.
        if cached_tokens(usage) or reported >= share * counted_tokens:
            return False
        texts = _texts(messages)
        if accepted.ratio is None and not _is_mostly_ascii(texts):
            share = OTHER_SCRIPTS_SHARE
        text_tokens = overhead + sum(counter.text(text) for text in texts)
        return reported < share * text_tokens


def _texts(messages: Sequence[Message]) -> list[str]:
    """Return the texts of *messages* that every API counts: no thinking and no media."""
    texts: list[str] = []
    for message in messages:
        content = message["content"]
        blocks = [content] if isinstance(content, str) else list(content)
        for block in blocks:
            if not isinstance(block, str) and kind(block) in ("thinking", "redacted_thinking"):
                continue
            parts = content_parts(block if isinstance(block, str) else [block])
            texts += [part for part in parts if isinstance(part, str)]
    return texts


def _is_mostly_ascii(texts: Sequence[str]) -> bool:
    """Return True if most characters of *texts* are ASCII characters."""
    total = sum(len(text) for text in texts)
    ascii_count = sum(len(text.encode("ascii", "ignore")) for text in texts)
    return ascii_count >= MIN_ASCII_SHARE * total
