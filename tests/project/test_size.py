"""No room of the package grows without a changed budget."""

from __future__ import annotations

import runpy
import tomllib

import pytest
from places import ROOT

SIZE = runpy.run_path(str(ROOT / "scripts" / "size.py"))
BUDGETS = {"tokens": {"edits": 10, "whole": 12}, "module": 6, "larger": {"edits.big": "why"}}


def test_every_room_is_within_its_budget():
    with (ROOT / "pyproject.toml").open("rb") as file:
        budgets = tomllib.load(file)["tool"]["ctxpipe"]["size"]
    sizes = SIZE["module_sizes"]()
    rooms = SIZE["room_sizes"](sizes)

    assert sum(rooms.values()) == sum(sizes.values())
    assert SIZE["problems"](rooms | SIZE["totals"](sizes, rooms), sizes, budgets) == []


@pytest.mark.parametrize(
    "source",
    [
        "x = f(1)\n",
        "# why\nx = f(1)  # so\n",
        "x = f(\n    1\n)\n",
        '"""What it is."""\n\nx = f(1)\n',
    ],
)
def test_comments_docstrings_and_layout_have_no_size(source):
    assert SIZE["token_count"](source) == 6


@pytest.mark.parametrize("text", ['"""a text"""', 'f"{a} and {b:{c}}"', """f"{f'{a}'}" """])
def test_a_text_that_documents_nothing_is_one_token(text):
    assert SIZE["token_count"](f"x = {text}\n") == 3


@pytest.mark.parametrize(
    ("found", "sizes", "problem"),
    [
        ({"edits": 11, "whole": 11}, {"edits.big": 11}, "edits has 11 tokens, 1 above its budget"),
        ({"edits": 7, "whole": 13}, {"edits.big": 7}, "whole has 13 tokens, 1 above its budget"),
        ({"edits": 7, "new": 1, "whole": 8}, {"edits.big": 7}, "new has no budget"),
        ({"whole": 7}, {"edits.big": 7}, "edits is not there"),
        (
            {"edits": 10, "whole": 10},
            {"edits.big": 7, "edits.a": 7},
            "the module edits.a has 7 tokens, above 6",
        ),
        ({"edits": 6, "whole": 6}, {"edits.big": 6}, "edits.big needs no exception"),
    ],
)
def test_what_is_too_large_or_has_no_budget_is_named(
    found: dict[str, int], sizes: dict[str, int], problem
):
    assert SIZE["problems"](found, sizes, BUDGETS) == [problem]


def test_the_core_holds_what_a_pipeline_needs_and_no_program():
    core = SIZE["core_modules"]()

    assert {"pipeline", "session", "stages.compact", "messages", "storage.local"} <= core
    assert not {name for name in core if name.partition(".")[0] in {"gateway", "lab", "testing"}}
