"""A mount says at once what it cannot work with."""

from __future__ import annotations

import pytest

from ctxpipe.errors import CtxpipeError
from ctxpipe.wire.versions import MountUnavailable, Versions, ensure_hook, load

VERSIONS = Versions("pytest", "pytest", "8.0", "9.0")


def hook(request: object, handler: object):
    """What a framework calls."""


def test_a_hook_of_the_expected_form_passes():
    ensure_hook(VERSIONS, hook, ["request", "handler"])


def test_another_form_names_the_version_found_and_those_that_were_tested():
    with pytest.raises(MountUnavailable, match=r"pytest \d.*hook takes no context; tested with 8"):
        ensure_hook(VERSIONS, hook, ["request", "context"])


def test_a_hook_that_is_gone_is_told():
    with pytest.raises(MountUnavailable, match="the hook is gone"):
        ensure_hook(VERSIONS, None, ["request"])


def test_a_package_that_is_missing_names_its_extra():
    with pytest.raises(MountUnavailable, match=r"pip install 'ctxpipe\[moon\]'"):
        load("no_such_package", Versions("no-such-package", "moon", "1", "2"))


def test_the_error_is_of_the_family_and_an_import_error():
    assert issubclass(MountUnavailable, CtxpipeError)
    assert issubclass(MountUnavailable, ImportError)
