"""The replies of a scripted model, and the names under which tests import them."""

from __future__ import annotations

import importlib

import pytest

from ctxpipe import testing


def test_the_old_name_of_answer_with_is_an_error_that_gives_the_new_one():
    with pytest.raises(ImportError, match=r"answer is now ctxpipe\.testing\.answer_with"):
        getattr(importlib.import_module("ctxpipe.testing"), "answer")  # noqa: B009  mypy knows it


def test_a_name_that_never_existed_is_an_attribute_error():
    assert not hasattr(testing, "no_such_name")


def test_a_star_import_of_testing_has_no_name_of_the_package():
    assert not set(testing.__all__) & set(importlib.import_module("ctxpipe").__all__)
