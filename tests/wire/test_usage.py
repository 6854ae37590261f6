"""Bills of other providers in the form that a session observes."""

from __future__ import annotations

import pytest
from openai.types import CompletionUsage

from ctxpipe.wire.usage import gemini_usage, openai_usage, usage

BILLED = {
    "input_tokens": 60,
    "cache_read_input_tokens": 30,
    "cache_creation_input_tokens": 10,
    "output_tokens": 5,
}


@pytest.mark.parametrize(
    "billed",
    [
        {
            "prompt_tokens": 100,
            "completion_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 10},
        },
        {
            "input_tokens": 100,
            "output_tokens": 5,
            "input_tokens_details": {"cached_tokens": 30, "cache_write_tokens": 10},
        },
    ],
    ids=["chat", "responses"],
)
def test_the_total_of_openai_holds_what_the_cache_has_read(billed: object):
    assert openai_usage(billed) == BILLED


def test_gemini_counts_thoughts_apart_and_what_the_cache_has_read_in_the_total():
    billed = {
        "promptTokenCount": 100,
        "cachedContentTokenCount": 40,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 2,
    }

    assert gemini_usage(billed) == {
        "input_tokens": 60,
        "cache_read_input_tokens": 40,
        "cache_creation_input_tokens": 0,
        "output_tokens": 5,
    }


def test_an_object_of_the_sdk_is_read_too():
    billed = CompletionUsage(prompt_tokens=7, completion_tokens=1, total_tokens=8)

    found = openai_usage(billed)

    assert found is not None
    assert found["input_tokens"] == 7


@pytest.mark.parametrize("billed", [None, {}, {"prompt_tokens": 0}, {"prompt_tokens": None}])
def test_without_a_total_there_is_nothing_to_learn(billed: object):
    assert openai_usage(billed) is None


def test_a_cache_never_gives_more_than_the_prompt():
    assert usage(10, read=30, written=5) == {
        "input_tokens": 0,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 0,
        "output_tokens": 0,
    }
