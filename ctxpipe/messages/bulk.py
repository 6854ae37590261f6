"""Whether messages are so many or so long that to look at them would hold up an event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

__all__ = ["is_bulky", "is_heavier"]

_MANY_MESSAGES = 200
_BULKY = 200_000
_VALUE_CHARS = 100  # to visit a value takes as long as to read so many characters


_MAPPINGS = (dict, Mapping)  # nearly always a dict, which is six times as fast to tell


def is_bulky(messages: Sequence[object], start: int = 0) -> bool:
    """Whether the messages from *start* on take more than some milliseconds to look at. No longer is spent here.

    Any value will do for a message: nothing is believed about its form.
    """
    return len(messages) - start > _MANY_MESSAGES or is_heavier(messages[start:], _BULKY)


def is_heavier(values: Iterable[object], limit: int) -> bool:
    """Whether *values* and all that they hold are more than *limit* characters, each value taken for a hundred."""
    left = limit
    found: list[object] = list(values)
    while found and left >= 0:
        value = found.pop()
        left -= _VALUE_CHARS
        if isinstance(value, str | bytes):
            left -= len(value)
        elif isinstance(value, _MAPPINGS):
            found += value.values() if len(value) * _VALUE_CHARS <= left else ()
            left -= len(value) * _VALUE_CHARS
        elif isinstance(value, list | tuple):
            found += value if len(value) * _VALUE_CHARS <= left else ()
            left -= len(value) * _VALUE_CHARS
        elif hasattr(value, "__dict__"):
            found += vars(value).values()
    return left < 0
