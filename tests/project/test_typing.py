"""The types that users see, by pyright, which their editors run. mypy is part of ``make lint``.

Nothing is downloaded: pyright and Node.js come with the packages of the test extra.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from places import PACKAGE, ROOT

# A name that only an import error binds; a class of a framework that is not installed here; types
# of other packages, which pyright leaves unknown in an alias.
NOT_KNOWN = {
    "ctxpipe.adapters.pydantic_ai.Ctxpipe",
    "ctxpipe.adapters.pydantic_ai.Ctxpipe.for_run",
    "ctxpipe.cli.missing",
    "ctxpipe.testing.running.start",
    "ctxpipe.tokens.ledger.UnreadBill",
}


def pyright(*arguments: str) -> dict[str, Any]:
    """What pyright says of *arguments*, with the settings of pyproject.toml."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    ran = subprocess.run(
        [*command, *arguments],
        cwd=ROOT,
        # pyright does not follow what an editable installation leaves in site-packages.
        env={
            **os.environ,
            "PYTHONPATH": str(PACKAGE.parent),
            "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
        },
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.stdout.startswith("{"), ran.stdout + ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_code_of_a_user_is_typed_and_his_mistakes_are_found():
    found = pyright()

    assert found["summary"]["filesAnalyzed"] == 1
    assert found["generalDiagnostics"] == []


def test_every_public_type_is_known():
    found = pyright("--verifytypes", "ctxpipe", "--ignoreexternal")

    symbols = found["typeCompleteness"]["symbols"]
    exported = [symbol for symbol in symbols if symbol["isExported"]]
    assert len(exported) > 3_000
    assert {one["name"] for one in exported if not one["isTypeKnown"]} == NOT_KNOWN
