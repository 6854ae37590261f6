"""Old names of earlier versions: an import of one gives the new name."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.util import find_spec

import pytest

import ctxpipe
from ctxpipe._moved import MOVED_MODULES, MovedModules

RENAMING_MODULES = (
    "ctxpipe",
    "ctxpipe.lab.costs",
    "ctxpipe.lab.replay",
    "ctxpipe.presets",
    "ctxpipe.wire",
)
STAGES = ("collapse", "compact", "media", "offload", "read_backs", "truncate")


@pytest.mark.parametrize(("module", "words"), MOVED_MODULES.items())
def test_an_import_of_a_module_that_has_moved_gives_the_new_one(module: str, words: str):
    with pytest.raises(ModuleNotFoundError, match=re.escape(f"{module} is now {words}")):
        importlib.import_module(module)
    assert all(find_spec(name) for name in re.findall(r"ctxpipe[\w.]*", words))


def test_a_module_below_one_that_has_moved_gives_the_new_one_too():
    with pytest.raises(ModuleNotFoundError, match=r"ctxpipe\.edits is now ctxpipe\.stages"):
        importlib.import_module("ctxpipe.edits.repair")


def test_a_module_that_never_existed_is_missing_as_ever():
    for name in ("ctxpipe.nothing", "no_such_package"):
        with pytest.raises(ModuleNotFoundError, match="No module named"):
            importlib.import_module(name)


def test_python_asks_for_moved_modules_last_and_once():
    importlib.reload(ctxpipe)

    assert sys.meta_path.count(MovedModules) == 1


@pytest.mark.parametrize("name", RENAMING_MODULES)
def test_a_renamed_name_gives_one_that_exists(name: str):
    module = importlib.import_module(name)
    renamed = vars(module)["_RENAMED"]

    assert renamed
    for old, new in renamed.items():
        with pytest.raises(ImportError, match=re.escape(f"{old} is now {new}")):
            getattr(module, old)
        place, _, today = new.partition("(")[0].rpartition(".")
        assert hasattr(importlib.import_module(place), today)


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_is_imported_from_the_module_stage_of_its_package(name: str):
    package = importlib.import_module(f"ctxpipe.stages.{name}")
    place = f"ctxpipe.stages.{name}.stage"

    for stage in vars(package)["_ELSEWHERE"][".stage"].split():
        with pytest.raises(ImportError, match=re.escape(f"import it from {place}")):
            getattr(package, stage)
        assert hasattr(importlib.import_module(place), stage)
