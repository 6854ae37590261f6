"""The memory that a piece of work takes."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def traced_memory() -> Iterator[None]:
    """Have `tracemalloc` trace it; what measures the coverage stops, since what it notes counts."""
    coverage = sys.modules.get("coverage")
    measuring = coverage.Coverage.current() if coverage else None
    if measuring:
        measuring.stop()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        if measuring:
            measuring.start()
