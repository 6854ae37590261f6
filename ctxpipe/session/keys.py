"""Keys that sign a journal: the first signs, each of them verifies."""

from __future__ import annotations

from collections.abc import Sequence

from ..settings import Wanted

__all__ = ["KEYS", "as_keys"]

LEAST_BYTES = 16


def _is_key(value: object) -> bool:
    return isinstance(value, bytes) and len(value) >= LEAST_BYTES


def _are_keys(value: object) -> bool:
    return _is_key(value) or (
        isinstance(value, list | tuple) and bool(value) and all(map(_is_key, value))
    )


KEYS = Wanted(
    _are_keys, f"{LEAST_BYTES} bytes or more, or a list of such keys of which the first one signs"
)


def as_keys(given: bytes | Sequence[bytes] | None) -> Sequence[bytes]:
    """*given* as a sequence of keys, the signing one first; empty without one."""
    if given is None:
        return ()
    return (given,) if isinstance(given, bytes) else tuple(given)
