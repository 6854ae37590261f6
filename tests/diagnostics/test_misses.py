"""Bills: read off the usage of a reply."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import Usage

from ctxpipe.diagnostics.misses import CacheUsage, cache_usage

USAGE: dict[str, Any] = {
    "input_tokens": 5,
    "cache_read_input_tokens": 100,
    "cache_creation_input_tokens": 20,
}


def test_a_usage_and_a_whole_reply_give_the_same_cache_usage():
    assert cache_usage(USAGE) == cache_usage({"usage": USAGE}) == CacheUsage(100, 20, 5)
    assert cache_usage(Usage(**USAGE, output_tokens=3)) == CacheUsage(100, 20, 5)


def test_tokens_written_for_an_hour_are_reported():
    hour = {"cache_creation": {"ephemeral_1h_input_tokens": 15, "ephemeral_5m_input_tokens": 5}}

    assert cache_usage({**USAGE, **hour}) == CacheUsage(100, 20, 5, 15)


NO_BILLS: dict[str, Any] = {
    "no word of the cache": {"input_tokens": 5},
    "not numbers": {**USAGE, "cache_read_input_tokens": None},
    "below zero": {**USAGE, "input_tokens": -1},
    "the server ran tools": {**USAGE, "server_tool_use": {"web_search_requests": 1}},
    "several requests": {
        **USAGE,
        "iterations": [{"type": "message", **USAGE}, {"type": "message", **USAGE}],
        "input_tokens": 10,
    },
}


@pytest.mark.parametrize("name", NO_BILLS)
def test_a_usage_of_more_than_one_request_gives_none(name: str):
    assert cache_usage(NO_BILLS[name]) is None


def test_results_that_the_server_cleared_were_sent_and_not_charged():
    edits = {"applied_edits": [{"cleared_input_tokens": 9}]}

    assert cache_usage({"usage": USAGE, "context_management": edits}) is None
