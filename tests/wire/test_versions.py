"""An adapter says at once what it cannot work with."""

from __future__ import annotations

import json

import pytest

from ctxpipe.errors import CtxpipeError
from ctxpipe.wire.versions import AdapterUnavailable, Versions, load

VERSIONS = Versions("pytest", "pytest", "8.0", "9.0")


def test_a_hook_of_the_expected_form_passes():
    assert load("json", VERSIONS, {"JSONDecoder.decode": ["s"], "loads": ["s"]}) is json


def test_another_form_names_the_version_found_and_those_that_were_tested():
    with pytest.raises(
        AdapterUnavailable, match=r"pytest \d.*JSONDecoder.decode takes no context; tested with 8"
    ):
        load("json", VERSIONS, {"JSONDecoder.decode": ["s", "context"]})


@pytest.mark.parametrize("name", ["JSONDecoder.understand", "Wizard.decode"])
def test_a_hook_that_is_gone_is_told(name):
    with pytest.raises(AdapterUnavailable, match="the hook is gone"):
        load("json", VERSIONS, {name: ["s"]})


def test_a_package_that_is_missing_names_its_extra():
    with pytest.raises(AdapterUnavailable, match=r"pip install 'ctxpipe\[moon\]'"):
        load("no_such_package", Versions("no-such-package", "moon", "1", "2"), {})


def test_the_error_is_of_the_family_and_an_import_error():
    assert issubclass(AdapterUnavailable, CtxpipeError)
    assert issubclass(AdapterUnavailable, ImportError)
