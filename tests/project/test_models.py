"""The names of models: one that everything names, and a few others for a reason."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest
from anthropic.resources.messages import messages as sdk
from places import ROOT

from ctxpipe.providers.cache_rules import ANTHROPIC
from ctxpipe.settings import EXAMPLE_MODEL, SUMMARY_MODEL

NAME = re.compile(r"\bclaude-[a-z0-9]+(?:[-.][a-z0-9]+)*")
# An agent, its packages, pages and headers, and the address of a page.
# The last four are names of recordings, and a header in them.
NO_MODEL = (
    *("claude-code", "claude-agent-sdk", "claude-prompt-caching"),
    *("claude-main", "claude-rewound", "claude-subagent", "claude-api"),
)
TABLE = "ctxpipe/providers/cache_rules.toml"
HOME = "ctxpipe/settings.py"
TRACED_AGENT = "tests/clients/traced_agent.py"  # it runs without ctxpipe
FIRST_PROGRAM = "ctxpipe/__init__.py"  # whose docstring is a page

COMPARED = "another current one, where two are compared or a peer was measured"
PRICED = "its prices have a form that those of the others have not"
EXCEPTIONS = {
    "claude-fable-5-1": PRICED,
    "claude-haiku-5-5": PRICED,
    "claude-opus-5-5": PRICED,
    "claude-sonnet-5": COMPARED,
    "claude-sonnet-5-5": "a peer's adapter knows by this name that thinking is bound",
}


def names_in(text: str) -> set[str]:
    """The names of models in *text*."""
    return {name for name in NAME.findall(text) if not name.startswith(NO_MODEL)}


@cache
def named() -> dict[str, set[str]]:
    """The names of models in each file of the repository that has some."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    found = {}
    for path in filter(None, listed.stdout.decode().split("\0")):
        file = ROOT / path
        if path != Path(__file__).relative_to(ROOT).as_posix() and file.is_file():
            found[path] = names_in(file.read_bytes().decode("utf-8", "replace"))
    return {path: names for path, names in found.items() if names}


def test_every_name_of_a_model_is_the_one_to_name_or_has_its_reason():
    known = {EXAMPLE_MODEL, SUMMARY_MODEL.default, *ANTHROPIC.min_tokens_by_model, *EXCEPTIONS}

    assert {path: names - known for path, names in named().items() if names - known} == {}
    assert set(EXCEPTIONS) <= set().union(*named().values())
    assert {"README.md", HOME, TABLE} <= set(named())


def test_no_model_is_named_that_the_sdk_calls_deprecated():
    deprecated = set(vars(sdk)["DEPRECATED_MODELS"]) - {SUMMARY_MODEL.default}
    found = {path: names & deprecated for path, names in named().items() if path != TABLE}

    assert {path: names for path, names in found.items() if names} == {}
    assert deprecated


def test_code_takes_the_model_to_name_from_its_one_place():
    literal = {path for path, names in named().items() if EXAMPLE_MODEL in names}
    programs_of_users = {path for path in literal if path.startswith("examples/")}
    code = {path for path in literal - programs_of_users if path.endswith(".py")}

    assert code == {HOME, FIRST_PROGRAM, TRACED_AGENT}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ('model="claude-mythos-preview")', {"claude-mythos-preview"}),
        ("anthropic/claude-opus-4-5-20251101.", {"claude-opus-4-5-20251101"}),
        ("bedrock: us.anthropic.claude-3-5-haiku-v1:0", {"claude-3-5-haiku-v1"}),
        ("`ctxpipe claude-code install`, claude-code.md", set()),
    ],
)
def test_names_of_models_are_found(text, names: set[str]):
    assert names_in(text) == names
