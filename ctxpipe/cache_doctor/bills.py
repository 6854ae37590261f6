"""The bill of a request, read off the usage of its reply."""

from __future__ import annotations

from ..messages import field
from ..tokens.billed import context_tokens
from .misses import Bill

__all__ = ["as_bill"]


def as_bill(given: object) -> Bill | None:
    """What a reply, or its usage, says of the prompt cache.

    None where it says nothing of it, or bills more than the one request that was sent: the server
    ran tools, or has cleared results.
    """
    held = field(given, "usage")
    usage = given if held is None else held
    read = field(usage, "cache_read_input_tokens")
    written = field(usage, "cache_creation_input_tokens")
    uncached = field(usage, "input_tokens")
    counts = [read, written, uncached]
    if not all(isinstance(count, int) and count >= 0 for count in counts):
        return None
    if context_tokens(given) != sum(counts):
        return None
    for_hour = field(field(usage, "cache_creation"), "ephemeral_1h_input_tokens")
    return Bill(read, written, uncached, for_hour if isinstance(for_hour, int) else 0)
