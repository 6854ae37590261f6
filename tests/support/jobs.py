"""Jobs for worker processes: good ones, hostile ones, and ones that fail."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence


def _tell(files: Sequence[str]):
    """Write the number of this process into *files*."""
    for file in files:
        with open(file, "w") as told:
            told.write(str(os.getpid()))


def measure(texts: Sequence[str]) -> Iterator[object]:
    for text in texts:
        yield [len(text), text[-3:]]


def fail_after_one(texts: Sequence[str]) -> Iterator[object]:
    _tell(texts)
    yield "one"
    raise MemoryError(texts)


def spin(texts: Sequence[str]) -> Iterator[object]:
    yield "begun"
    _tell(texts)
    sum(1 for _ in iter(int, 1))  # for ever
    yield "never"


def spin_in_c(texts: Sequence[str]) -> Iterator[object]:
    """Make a call that holds the interpreter, so that no thread and no signal handler runs."""
    _tell(texts)
    re.match(r"(a+)+$", "a" * 60 + "!")
    yield "never"


def hoard(_: Sequence[str]) -> Iterator[object]:
    yield len(bytearray(2**32))


def die(texts: Sequence[str]) -> Iterator[object]:
    _tell(texts)
    os.kill(os.getpid(), 11)
    yield "never"
