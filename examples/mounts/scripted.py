"""The model of the examples: it calls the tool ``read_log`` three times, then says how it went."""

from __future__ import annotations

from ctxpipe.testing import Reply, answer, tool_use

LOG = "2026-11-23 09:00:00 INFO request served in 12 ms\n" * 200


def read_log(day: int) -> str:
    """The log of a day."""
    return f"day {day}\n{LOG}"


def script() -> list[Reply]:
    """What the model answers, in order."""
    calls = [answer(tool_use("read_log", {"day": day}, id=f"call_{day}")) for day in (1, 2, 3)]
    return [*calls, "All three days are quiet."]
