"""What a case prescribes besides its input: counter, model, clock and failing writer.

The adapter plugs them in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Hooks"]

COUNTERS: Mapping[str, Callable[[str], int]] = {
    "chars4": lambda text: -(-len(text) // 4),
    "markers": lambda text: sum(map(int, re.findall(r"T(\d+)\|", text))),
    "words": lambda text: len(text.split()),
}


class Hooks:
    """A case's scripted surroundings, which keep a record of how they were used."""

    def __init__(self, case: Mapping[str, Any]):
        self._count = COUNTERS[case.get("counter", "chars4")]
        self._script = iter(case.get("llm", {}).get("script", []))
        self._writer = case.get("writer")
        self.text_calls = 0
        self.llm_calls: list[Any] = []
        self.sleeps: list[float] = []
        self.logs: list[tuple[str, str]] = []

    def count_text(self, text: str) -> int:
        self.text_calls += 1
        return self._count(text)

    async def llm(self, prompt: Any, model: str | None = None) -> str:  # noqa: ARG002
        """The scripted answer, or the scripted failure."""
        self.llm_calls.append(prompt)
        step = next(self._script, {"say": "SUMMARY"})
        if "raise" in step:
            raise RuntimeError(step["raise"])
        return str(step["say"])

    async def sleep(self, seconds: float):
        """A wait of the retry layer, noted and not waited for."""
        self.sleeps.append(seconds)

    def log(self, level: str, message: object):
        self.logs.append((level, str(message)))

    def fail_write(self) -> Mapping[str, Any] | None:
        """Which write is to fail, and in which words; None when none is."""
        return self._writer

    def told(self) -> dict[str, Any]:
        """What a case may expect of its surroundings."""
        levels = [level for level, _ in self.logs]
        return {
            "llm_calls": len(self.llm_calls),
            "text_calls": self.text_calls,
            "sleeps": self.sleeps,
            "warnings": levels.count("warning"),
            "errors": levels.count("error"),
            "prompt": str(self.llm_calls[0]) if self.llm_calls else "",
        }
