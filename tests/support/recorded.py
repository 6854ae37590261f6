"""Recorded conversations of real agents, as an agent's loop went through them.

They are used where they lie beside the project.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import settings

from ctxpipe.messages import Message
from ctxpipe.turn.repair import repair

NIGHTLY = settings().max_examples > 500  # the profile that leaves nothing out

TRANSCRIPTS = sorted(
    (Path(__file__).resolve().parents[3] / "shared" / "transcripts").glob("*.jsonl")
)


def sample(step: int, start: int = 0) -> list[Path]:
    """Every *step*-th transcript from *start* on; in the nightly profile all of them."""
    return TRANSCRIPTS if NIGHTLY else TRANSCRIPTS[start::step]


def each_sample(step: int, start: int = 0) -> pytest.MarkDecorator:
    """Runs a test with each *file* of `sample`; where there is none, the test is skipped."""
    files = sample(step, start)
    # A list, not a function: older versions of pytest call that for the placeholder of no file.
    return pytest.mark.parametrize("file", files, ids=[file.stem for file in files])


def in_turn(*axes: Collection[object], last: Sequence[object]) -> list[tuple[Any, ...]]:
    """Return each combination of *axes* with a value of *last*, in turn; at night with all of them.

    Use it in a long test, for an axis that depends little on the others.
    """
    rows: list[tuple[Any, ...]] = []
    for places_and_values in itertools.product(*map(enumerate, axes)):
        places, values = zip(*places_and_values, strict=True)
        if NIGHTLY:
            rows += [(*values, value) for value in last]
        else:
            rows.append((*values, last[sum(places) % len(last)]))
    return rows


def recorded(file: Path) -> list[Message]:
    """The conversation.

    One of them holds a reply that broke off while it was thinking, which is mended first.
    """
    rows = map(json.loads, file.read_text("utf-8").splitlines())
    return repair([cast("Message", row) for row in rows if "role" in row])


def turns(history: list[Message]) -> Iterator[list[Message]]:
    """Yield what is new at each model call: the reply to the one before, and what follows it."""
    start = 0
    for index, message in enumerate(history):
        if message["role"] == "assistant" and history[index - 1]["role"] != "assistant":
            yield history[start:index]
            start = index
    yield history[start:]


def lines(*values: object) -> str:
    """*values* as JSON, a line each."""
    return "".join(json.dumps(value) + "\n" for value in values)
