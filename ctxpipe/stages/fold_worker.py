"""What runs in the worker process of `Folder`. It imports the parsing and nothing else: a worker serves one request."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import IO

from ..edits.definitions import definitions

__all__ = ["READY", "serve"]

READY = b"ready\n"


def serve(given: IO[bytes], answers: IO[bytes]) -> None:
    """Answer *given*, pickled pairs of path and text, by `READY` and a line of JSON for each, as soon as it is read."""
    files = list(_received(given))  # all of them before the first answer, or each side waits for the other to read
    _say(answers, READY)
    for path, text in files:
        found = [(each.type, each.name, each.line) for each in definitions(path, text) or ()]
        _say(answers, json.dumps(found).encode() + b"\n")


def _received(given: IO[bytes]) -> Iterator[tuple[str, str]]:
    while True:
        try:
            yield pickle.load(given)  # noqa: S301 - from the process that started this one
        except EOFError:
            return


def _say(answers: IO[bytes], line: bytes) -> None:
    answers.write(line)
    answers.flush()
