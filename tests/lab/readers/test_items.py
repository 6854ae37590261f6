"""The items of another API's conversation, and what is known of each."""

from __future__ import annotations

from typing import Any

import pytest

from ctxpipe.errors import InvalidHistory
from ctxpipe.lab.readers.items import Items
from ctxpipe.lab.records import valid_object
from ctxpipe.wire import ChatCodec

ASKED: dict[str, Any] = {"role": "user", "content": "Go."}
REPLY: dict[str, Any] = {"role": "assistant", "content": "Done."}
USAGE = {"prompt_tokens": 100, "completion_tokens": 2}


def items(*values: dict[str, Any]) -> Items:
    found = Items(ChatCodec())
    for value in values:
        found.add(value)
    return found


def test_usages_stay_when_the_whole_history_is_sent_again():
    found = items()
    found.begin([ASKED], "line 1")
    found.add(ASKED)
    found.add(REPLY)
    found.note_usage(found.items[1], USAGE, "m-1")
    found.begin([ASKED, REPLY, ASKED], "line 2")
    for value in (ASKED, REPLY, ASKED):
        found.add(value)

    [_, reply, _] = found.recording({}).entries
    assert reply.usage == {
        "input_tokens": 100,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "output_tokens": 2,
    }


def test_the_instructions_come_before_the_leading_items():
    found = items({"role": "system", "content": "Be brief."}, ASKED, REPLY)

    request = found.recording({"instructions": "You code."}, {}).request
    assert request["system"] == [
        {"type": "text", "text": "You code."},
        {"type": "text", "text": "Be brief."},
    ]


def test_instructions_that_are_neither_text_nor_blocks_are_refused():
    found = items({"role": "system", "content": "Be brief."}, ASKED, REPLY)

    with pytest.raises(InvalidHistory, match="the instructions are neither text nor a list"):
        found.recording({"instructions": True}, {})


def test_a_field_of_another_type_is_refused_with_its_place():
    assert valid_object({"id": None}, "line 1", id=str, name=str) == {"id": None}
    with pytest.raises(InvalidHistory, match="line 1: int as name, not text"):
        valid_object({"name": 7}, "line 1", id=str, name=str)
    with pytest.raises(InvalidHistory, match="line 1: an item is int, not an object"):
        valid_object(7, "line 1", "an item")
