"""URLs of texts: written from keys, recognized, and never a way out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import StorageError
from ctxpipe.errors import safe_text
from ctxpipe.placeholders.locations import key_of_url, key_parts, possible_keys, url_of

KEYS = st.from_regex(r"[a-z0-9_-]{1,20}/[A-Za-z0-9_.-]{0,20}[A-Za-z0-9]", fullmatch=True)


@given(KEYS)
def test_a_url_leads_back_to_its_key(key: str):
    assert key_of_url(url_of(key)) == key
    assert next(possible_keys(url_of(key))) == key


@pytest.mark.parametrize("key", ["", ".", "..", "/", "/etc/passwd", "../x", "s/../t/x", "a\0b"])
def test_a_key_that_leads_out_has_no_url(key):
    with pytest.raises(StorageError):
        url_of(key)


@pytest.mark.parametrize(
    "url",
    [
        "ctxpipe://",
        "ctxpipe:///s/a.md",
        "ctxpipe://s/../t/a.md",
        "ctxpipe://s//a.md",
        "ctxpipe://./s/a.md",
        "ctxpipe://s/a\0.md",
        "CTXPIPE://s/a.md",
        "ctxpipe:s/a.md",
        "s/a.md",
    ],
)
def test_a_text_that_only_looks_like_a_url_has_no_key(url):
    assert key_of_url(url) is None


@pytest.mark.parametrize(
    "location",
    ["s/a.md", "./s/a.md", "ctxpipe://s/a.md", "/mnt/results/s/a.md", "s3://bucket/s/a.md"],
)
def test_every_form_that_a_placeholder_prints_leads_to_the_key(location):
    assert "s/a.md" in list(possible_keys(location))


@given(st.text())
def test_no_location_leads_out(location: str):
    for key in possible_keys(location):
        assert ".." not in key_parts(key)


def test_a_text_for_logs_does_not_name_the_session():
    error = StorageError("cannot read ctxpipe://tenant-7/a.md")
    try:
        raise error
    except StorageError:
        assert "tenant-7" not in safe_text(error)
