from __future__ import annotations

import io
import json
import pickle

from processes import python

from ctxpipe.stages.fold_worker import READY, serve


def test_each_file_is_answered_by_a_line() -> None:
    given = b"".join(
        pickle.dumps(file) for file in [("a.py", "class A: pass\n\ndef f(): pass"), ("a.txt", "def f(): pass")]
    )
    answers = io.BytesIO()

    serve(io.BytesIO(given), answers)

    ready, first, second = answers.getvalue().splitlines(keepends=True)
    assert ready == READY
    assert json.loads(first) == [["class", "A", 1], ["function", "f", 3]]
    assert json.loads(second) == []


def test_a_worker_imports_nothing_that_parsing_does_not_need() -> None:
    heavy = "{'anyio', 'asyncio', 'anthropic', 'tiktoken', 'opentelemetry', 'tenacity'}"

    assert python(f"import sys, ctxpipe.stages.fold_worker; print({heavy} & sys.modules.keys())") == "set()"
