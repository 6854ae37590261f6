"""What the contract of a storage needs of a backend: places, and failures on demand."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["CALLS_OF_A_DISK", "failing_disk"]

CALLS_OF_A_DISK = (
    "open",
    "write",
    "link",
    "rename",
    "replace",
    "ftruncate",
    "mkdir",
    "stat",
    "fsync",
)


@contextmanager
def failing_disk(root: str, operations: int) -> Iterator[None]:
    """A disk on which all calls that name something below *root* fail after so many."""
    left = operations

    def wrap(call: Callable[..., Any]) -> Callable[..., Any]:
        def count_down(*args: Any, **options: Any) -> Any:
            nonlocal left
            if not is_ours(args, options):
                return call(*args, **options)
            if left <= 0:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            left -= 1
            return call(*args, **options)

        return count_down

    def is_ours(args: tuple[Any, ...], options: dict[str, Any]) -> bool:
        target = args[0]
        if isinstance(target, int):
            return os.readlink(f"/proc/self/fd/{target}").startswith(root)
        folder = options.get("dir_fd") or options.get("src_dir_fd")
        if folder is not None:
            return os.readlink(f"/proc/self/fd/{folder}").startswith(root)
        return str(os.fspath(target)).startswith(root)

    before = {name: getattr(os, name) for name in CALLS_OF_A_DISK}
    try:
        for name, call in before.items():
            setattr(os, name, wrap(call))
        yield
    finally:
        for name, call in before.items():
            setattr(os, name, call)
