"""Convert the usage that a provider reports to the form of the Messages API.

OpenAI and Gemini count the tokens that were read from or written to the prompt cache as part of
the prompt. The Messages API counts them separately: a prompt of 1,000 tokens, 800 of which were
read from the cache, has ``input_tokens`` 200 and ``cache_read_input_tokens`` 800.
"""

from __future__ import annotations

from ..messages import field
from .values import first_field


def usage(
    total: object, *, read: object = 0, written: object = 0, output: object = 0
) -> dict[str, int] | None:
    """Return the usage of a prompt of *total* tokens; None if *total* is unknown or 0.

    *read* and *written* are the tokens of the prompt that were read from and written to the cache,
    *output* the tokens of the answer. A value that is no number counts as 0.
    """
    prompt_tokens = _count(total)
    if not prompt_tokens:
        return None
    read_tokens = min(_count(read), prompt_tokens)
    written_tokens = min(_count(written), prompt_tokens - read_tokens)
    return {
        "input_tokens": prompt_tokens - read_tokens - written_tokens,
        "cache_read_input_tokens": read_tokens,
        "cache_creation_input_tokens": written_tokens,
        "output_tokens": _count(output),
    }


def openai_usage(reported_usage: object) -> dict[str, int] | None:
    """Convert the usage of a chat completion or a response; return None if it has no prompt."""
    details = first_field(reported_usage, "prompt_tokens_details", "input_tokens_details")
    return usage(
        first_field(reported_usage, "prompt_tokens", "input_tokens"),
        read=field(details, "cached_tokens"),
        written=field(details, "cache_write_tokens"),
        output=first_field(reported_usage, "completion_tokens", "output_tokens"),
    )


def gemini_usage(reported_usage: object) -> dict[str, int] | None:
    """Convert the ``usageMetadata`` of Gemini, which counts thoughts separately from the answer.

    Returns None if it has no prompt.
    """
    answer_tokens = _count(field(reported_usage, "candidatesTokenCount"))
    thought_tokens = _count(field(reported_usage, "thoughtsTokenCount"))
    return usage(
        field(reported_usage, "promptTokenCount"),
        read=field(reported_usage, "cachedContentTokenCount"),
        output=answer_tokens + thought_tokens,
    )


def _count(value: object) -> int:
    """Return *value* if it is a whole number above 0, else 0."""
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return max(0, value)
