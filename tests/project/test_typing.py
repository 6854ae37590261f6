"""The types that users see, by pyright, which their editors run, in the nightly profile.

By day, mypy reads the same code of users and the examples, as a part of ``make test``.

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
import tomllib
import typing
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

import anthropic
import anthropic.types.beta
import pytest
from anthropic.resources.messages import AsyncMessages
from anthropic.types import anthropic_beta_param, message_create_params
from anthropic.types.beta import message_create_params as beta_message_create_params
from places import PACKAGE, ROOT
from recorded import NIGHTLY
from sdks import knows_middleware

from ctxpipe.messages import vocabulary
from ctxpipe.session import open_calls, parameters
from scripts.pages import blocks_of

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


def pyright(*arguments: str, folder: Path = ROOT) -> dict[str, Any]:
    """Return the report of pyright, run in *folder* and with its settings."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    ran = subprocess.run(
        [*command, *arguments],
        cwd=folder,
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


# The examples and `ctxpipe.session.parameters` are for the SDK of today. An older one takes fewer
# parameters, and has clients of another HTTP library.
TODAY = (2, 13)
installed = tuple(map(int, anthropic.__version__.split(".")[:2]))
needs_today = pytest.mark.skipif(
    installed < TODAY, reason=f"anthropic {anthropic.__version__} takes fewer parameters than 2.13"
)

FRAMEWORKS = (
    *("langchain", "langchain_core", "langchain_openai", "langgraph"),
    *("litellm", "pydantic_ai"),
    *("ag2", "agent_framework", "agents", "autogen_ext", "crewai", "haystack", "llama_index"),
    *("smolagents", "strands"),
    *("dask", "pyspark", "ray"),
    *("aiosqlite", "dbos", "sqlalchemy", "temporalio"),
)
MISSING_IMPORT = re.compile(r'Import "((\w+)[\w.]*)" could not be resolved')


def is_installed(module: str) -> bool:
    """Return True if *module* can be imported; False also if a package that it is in is missing."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def ensure_no_errors(report: dict[str, Any], folders: Sequence[Path]) -> None:
    """Fail if *report* has an error in *folders*, other than the import of a framework.

    Only those frameworks are excepted that are not installed.
    """
    errors = []
    for error in report["generalDiagnostics"]:
        if not any(Path(error["file"]).is_relative_to(folder) for folder in folders):
            continue
        message = error["message"]
        # `make test-adapters` has the frameworks that `make test` does not install.
        unresolved = MISSING_IMPORT.match(message)
        if unresolved and unresolved[2] in FRAMEWORKS and not is_installed(unresolved[1]):
            continue
        # Programs with the middleware are for SDKs that have it.
        if not knows_middleware and message == 'No parameter named "middleware"':
            continue
        line = error["range"]["start"]["line"] + 1
        errors.append(f"{error['file']}:{line}: {message}")
    assert errors == [], "\n".join(errors)


CODE_OF_USERS = [ROOT / "tests" / "typing", ROOT / "examples"]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
FUNCTION_OF_A_PAGE = "async def page(pipeline: ContextPipeline, model: Any, tools: Any):"
"""Its parameters are what a reader has already, in the blocks that are not run."""
IMPORTS = "from typing import Any; from ctxpipe import ContextPipeline"


def modules_of(page: Path) -> dict[str, str]:
    """Return the Python blocks of *page* as modules, by file name. Lines keep their numbers.

    A program is a module. The other blocks share their names, and may have an await at the top
    level: together they are one function.
    """
    name = "_".join(page.relative_to(ROOT).with_suffix("").parts)
    modules: dict[str, str] = {}
    lines: list[str] = []
    for block in blocks_of(page):
        if block.kind != "python":
            continue
        if block.is_program:
            modules[f"{name}_{block.line}.py"] = "\n" * block.line + block.code
            continue
        if not lines:
            lines = [IMPORTS, FUNCTION_OF_A_PAGE]
        lines += [""] * (block.line - len(lines))
        lines += indent(block.code, "    ").splitlines()
    if lines:
        modules[f"{name}.py"] = "\n".join(lines) + "\n"
    return modules


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the programs of all pages."""
    folder: Path = tmp_path_factory.mktemp("pages")
    for page in PAGES:
        for name, code in modules_of(page).items():
            (folder / name).write_text(code, "utf-8")
    return folder


@pytest.fixture(scope="module")
def report(pages: Path) -> dict[str, Any]:
    """What pyright finds in the code of a user, the examples and the programs of the pages.

    It runs once, since it reads the package and the SDKs each time.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    settings: dict[str, Any] = project["tool"]["pyright"]
    root = os.path.relpath(ROOT, pages)  # pyright ignores absolute paths
    settings["include"] = [*(f"{root}/{folder}" for folder in settings["include"]), "."]
    settings["strict"] = [f"{root}/{folder}" for folder in settings["strict"]]
    (pages / "pyrightconfig.json").write_text(json.dumps(settings), "utf-8")
    return pyright(folder=pages)


@needs_today
def test_code_of_a_user_and_the_examples_are_typed_and_mistakes_are_found(report):
    ensure_no_errors(report, CODE_OF_USERS)


def test_the_programs_of_the_pages_are_typed_with_pyright_s_default_settings(report, pages):
    ensure_no_errors(report, [pages])


def test_pyright_reads_each_file(report, pages):
    files = [file for folder in (*CODE_OF_USERS, pages) for file in folder.rglob("*.py")]

    assert report["summary"]["filesAnalyzed"] == len(files)
    assert len(list(pages.iterdir())) > 1


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


@pytest.mark.skipif(not NIGHTLY, reason="a second run of pyright, in the nightly profile")
def test_every_public_type_is_known():
    found = pyright("--verifytypes", "ctxpipe", "--ignoreexternal")

    symbols = found["typeCompleteness"]["symbols"]
    exported = [symbol for symbol in symbols if symbol["isExported"]]
    assert len(exported) > 3_000
    assert {one["name"] for one in exported if not one["isTypeKnown"]} <= NOT_KNOWN
