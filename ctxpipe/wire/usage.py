"""What a reply was billed, in the form that a session observes."""

from __future__ import annotations

from ..messages import field
from .values import first_field


def usage(
    total: object, *, read: object = 0, written: object = 0, output: object = 0
) -> dict[str, int] | None:
    """The usage of a prompt of *total* tokens, of which the cache has *read* and *written* some.

    None where *total* is unknown. The Messages API, whose form this is, counts apart what others
    count in the total.
    """
    tokens = _count(total)
    if not tokens:
        return None
    from_cache = min(_count(read), tokens)
    to_cache = min(_count(written), tokens - from_cache)
    return {
        "input_tokens": tokens - from_cache - to_cache,
        "cache_read_input_tokens": from_cache,
        "cache_creation_input_tokens": to_cache,
        "output_tokens": _count(output),
    }


def openai_usage(billed: object) -> dict[str, int] | None:
    """The same for the usage of a chat completion, or of a response; None where there is none."""
    details = first_field(billed, "prompt_tokens_details", "input_tokens_details")
    return usage(
        first_field(billed, "prompt_tokens", "input_tokens"),
        read=field(details, "cached_tokens"),
        written=field(details, "cache_write_tokens"),
        output=first_field(billed, "completion_tokens", "output_tokens"),
    )


def gemini_usage(billed: object) -> dict[str, int] | None:
    """The same for the ``usageMetadata`` of Gemini, which counts thoughts apart."""
    return usage(
        field(billed, "promptTokenCount"),
        read=field(billed, "cachedContentTokenCount"),
        output=_count(field(billed, "candidatesTokenCount"))
        + _count(field(billed, "thoughtsTokenCount")),
    )


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return max(0, value)
