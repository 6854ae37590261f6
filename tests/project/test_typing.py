"""The types that users see, by pyright, which their editors run. mypy is part of ``make lint``.

Nothing is downloaded: pyright and Node.js come with the packages of the test extra.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
import typing
from typing import Any

import anthropic
import anthropic.types.beta
import pytest
from anthropic.resources.messages import AsyncMessages
from anthropic.types import anthropic_beta_param, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from places import PACKAGE, ROOT
from sdks import knows_middleware

from ctxpipe.conversation import open_calls
from ctxpipe.messages import vocabulary
from ctxpipe.session import parameters

# A name that only an import error binds; a class of a framework that is not installed here; types
# of other packages, which pyright leaves unknown in an alias, in some orders of its work.
NOT_KNOWN = {
    "ctxpipe.adapters.pydantic_ai.Ctxpipe",
    "ctxpipe.adapters.pydantic_ai.Ctxpipe.for_run",
    "ctxpipe._cli.missing",
    "ctxpipe.testing.running.application",
    "ctxpipe.testing.running.start",
    "ctxpipe.tokens.ledger.PendingUsage",
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


FRAMEWORKS = (
    *("langchain", "langchain_core", "langchain_openai", "langgraph"),
    *("litellm", "pydantic_ai"),
)
MISSING_IMPORT = re.compile(r'Import "(\w+)[\w.]*" could not be resolved')


def test_code_of_a_user_and_the_examples_are_typed_and_mistakes_are_found():
    found = pyright()

    examples = list((ROOT / "examples").rglob("*.py"))
    assert found["summary"]["filesAnalyzed"] == 1 + len(examples)
    errors = [error["message"] for error in found["generalDiagnostics"]]
    imports = [match[1] for match in map(MISSING_IMPORT.match, errors) if match]
    # `make test-adapters` has the frameworks that `make test` does not install.
    missing = {name for name in FRAMEWORKS if importlib.util.find_spec(name) is None}
    assert set(imports) <= missing
    # An example of the middleware is for SDKs that have it.
    untypable = 0 if knows_middleware else errors.count('No parameter named "middleware"')
    assert len(errors) == len(imports) + untypable, errors


# `ctxpipe.session.parameters` has those of the SDK of today. One that is older takes fewer.
TODAY = (2, 13)
installed = tuple(map(int, anthropic.__version__.split(".")[:2]))
needs_today = pytest.mark.skipif(
    installed < TODAY, reason=f"anthropic {anthropic.__version__} takes fewer parameters than 2.13"
)

# The SDK writes some of its types under a name that only its module has.
NAMES = vars(anthropic) | vars(anthropic.types) | vars(anthropic.types.beta) | vars(typing)
NAMES |= vars(anthropic._types) | vars(anthropic_beta_param) | vars(open_calls) | vars(vocabulary)


@needs_today
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (parameters.Parameters, message_create_params.MessageCreateParamsBase),
        (parameters.BetaParameters, beta_message_create_params.MessageCreateParamsBase),
    ],
    ids=["messages", "beta"],
)
def test_create_takes_what_the_sdk_takes(ours: type, theirs: type):
    wanted = typing.get_type_hints(theirs, include_extras=True)
    del wanted["messages"]
    found = typing.get_type_hints(ours, localns=NAMES, include_extras=True)
    for name in (*parameters.Transport.__annotations__, *parameters.OwnParameters.__annotations__):
        del found[name]

    if "betas" in wanted:  # a List there, a list here
        wanted["betas"] = list[typing.get_args(wanted["betas"])]  # type: ignore[misc]
    assert found == wanted


def test_create_takes_every_option_of_the_sdk_s_transport():
    options = set(inspect.signature(AsyncMessages.create).parameters)
    options -= {"self", "messages", "stream"}

    ours = {*parameters.Parameters.__annotations__} - {*parameters.OwnParameters.__annotations__}
    if installed < TODAY:
        options -= {"temperature", "top_k", "top_p"}  # which the SDK has dropped since
        assert options < ours
    else:
        assert options == ours


def test_every_public_type_is_known():
    found = pyright("--verifytypes", "ctxpipe", "--ignoreexternal")

    symbols = found["typeCompleteness"]["symbols"]
    exported = [symbol for symbol in symbols if symbol["isExported"]]
    assert len(exported) > 3_000
    assert {one["name"] for one in exported if not one["isTypeKnown"]} <= NOT_KNOWN
