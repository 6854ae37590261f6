"""The package as a whole: what it offers, and what it does not do when it is imported."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import pytest
from places import ROOT
from processes import new_python

import ctxpipe
from ctxpipe.wire.versions import AdapterUnavailable

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(ctxpipe.__path__, "ctxpipe.")
    if "__main__" not in module.name
)
HEAVY = (
    "aiofiles",
    "anthropic",
    "ast_grep_py",
    "distributed",
    "opentelemetry",
    "rich",
    "tenacity",
    "tiktoken",
)


def test_the_public_names_are_sorted_and_each_is_there():
    assert list(ctxpipe.__all__) == sorted(set(ctxpipe.__all__))
    for name in ctxpipe.__all__:
        assert getattr(ctxpipe, name) is not None


def test_the_root_hands_on_the_functions_outside_its_public_names():
    functions = importlib.import_module("ctxpipe.functions")

    assert not set(functions.__all__) & set(ctxpipe.__all__)
    for name in functions.__all__:
        assert getattr(ctxpipe, name) is getattr(functions, name)


def test_a_name_that_is_elsewhere_is_an_error_that_says_where():
    rooms = vars(ctxpipe)["_ELSEWHERE"]

    for modules, names in rooms.items():
        for name in names.split():
            with pytest.raises(ImportError, match=rf"{name} .*: import it from ctxpipe{modules}$"):
                getattr(ctxpipe, name)
    assert "prices_of" in rooms[".providers.prices"]


def test_the_settings_of_a_stage_are_imported_from_where_the_stage_is():
    from ctxpipe import (
        AnthropicSummarizer,
        Breaker,
        Evidence,
        ExtractiveSummarizer,
        MediaOffload,
        Preview,
        PromptSummarizer,
        RatioGate,
        RentOrBuyGate,
        Retry,
    )

    summarizers = [AnthropicSummarizer, ExtractiveSummarizer, PromptSummarizer]
    storage = ctxpipe.MemoryStorage()
    gate = RatioGate(0.3)
    assert MediaOffload(storage)
    assert ctxpipe.BatchOffload(storage, gate, preview=Preview()).gate is gate
    assert ctxpipe.BatchOffload(storage, RentOrBuyGate(alpha=3)).gate != gate
    assert Breaker(retry=Retry(max_retries=0)) != Breaker()
    assert Evidence(tokens=0) != Evidence()
    assert not {kind.__name__ for kind in summarizers} & set(ctxpipe.__all__)


def offered_names(module: str) -> set[str]:
    """What *module*, which may need a framework, imports or defines."""
    place = Path(ctxpipe.__file__).parents[1].joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return names


def test_a_name_that_is_elsewhere_is_where_the_error_says():
    for modules, names in vars(ctxpipe)["_ELSEWHERE"].items():
        for module in f"ctxpipe{modules}".split(" or "):
            assert set(names.split()) <= offered_names(module)


def test_dir_shows_every_name_that_can_be_imported_and_others_are_missing():
    names = " ".join(vars(ctxpipe)["_NAMES"].values()).split()

    assert {*ctxpipe.__all__, *names, "RatioGate"} <= set(dir(ctxpipe))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = ctxpipe.nothing


def test_every_error_of_ours_belongs_to_the_family():
    errors = importlib.import_module("ctxpipe.errors")

    assert all(issubclass(getattr(errors, name), ctxpipe.CtxpipeError) for name in errors.__all__)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is_and_offers_only_what_it_has(name: str):
    try:
        module = importlib.import_module(name)
    except AdapterUnavailable as missing:
        pytest.skip(f"make test-adapters has what it needs: {missing}")

    assert module.__doc__
    for public in getattr(module, "__all__", ()):
        assert hasattr(module, public)


@pytest.mark.parametrize("name", sorted(set(ctxpipe.__all__) - {"Stage"}))
def test_every_public_name_says_what_it_promises(name: str):
    assert inspect.getdoc(getattr(ctxpipe, name))


def test_importing_it_loads_nothing_heavy():
    assert (
        new_python(f"import sys, ctxpipe; print([name for name in {HEAVY} if name in sys.modules])")
        == "[]"
    )


def test_building_a_pipeline_loads_neither_anthropic_nor_tiktoken():
    script = """
import sys
from ctxpipe import BatchOffload, ContextPipeline, DirectOffload, LocalStorage
storage = LocalStorage(".ctxpipe")
ContextPipeline([DirectOffload(storage), BatchOffload(storage)])
print([name for name in ("anthropic", "tiktoken") if name in sys.modules])
"""
    assert new_python(script) == "[]"


def test_neither_importing_nor_offloading_opens_a_connection(tmp_path):
    script = """
import sys
def audit(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "urllib.Request"):
        print("the network was asked:", event, arguments)
sys.addaudithook(audit)
import anyio
from ctxpipe import *
from ctxpipe.functions import *
async def main():
    storage = LocalStorage(sys.argv[1])
    call = {"type": "tool_use", "id": "a", "name": "bash", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": "line of a log\\n" * 500}
    history = [{"role": "user", "content": "go"}, {"role": "assistant", "content": [call]},
               {"role": "user", "content": [result]}]
    pipeline = ContextPipeline([DirectOffload(storage), BatchOffload(storage)])
    done = await pipeline.run(history, session_id="s")
    print(done.changed, count_tokens(history) > 0)
anyio.run(main)
"""
    assert new_python(script, tmp_path) == "True True"


def test_importing_it_writes_and_logs_nothing(tmp_path):
    script = """
import os, sys
os.chdir(sys.argv[1])
import logging
import ctxpipe
from ctxpipe import *
from ctxpipe.functions import *
print(os.listdir("."), logging.getLogger("ctxpipe").handlers, logging.root.handlers)
"""
    assert new_python(script, tmp_path) == "[] [] []"


def test_it_is_typed():
    assert (Path(ctxpipe.__file__).parent / "py.typed").exists()


def test_its_version_is_the_one_that_was_built():
    assert importlib.metadata.version("ctxpipe") == ctxpipe.__version__


def test_the_changelog_and_the_readme_name_its_version():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    readme = (ROOT / "README.md").read_text("utf-8")

    assert newest is not None
    assert newest[1] == ctxpipe.__version__
    assert f"Version {ctxpipe.__version__.rpartition('.')[0]}," in readme
