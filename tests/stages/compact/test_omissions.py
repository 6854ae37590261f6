"""The file with the content that a compaction does not carry over."""

from __future__ import annotations

import json
from typing import cast

from compactions import UPLOAD, gadget
from histories import user

from ctxpipe.messages import Message
from ctxpipe.stages.compact.omissions import omission_names, omissions_text
from ctxpipe.stages.reading.carry_candidates import blocks_to_carry


def as_it_is(message: Message) -> Message:
    return message


def test_what_is_left_out_is_named_by_kind_with_the_newest_files():
    uploads = [{**UPLOAD, "file_id": f"file_{number}"} for number in range(30)]
    found = blocks_to_carry([user("Go.", *uploads, gadget())])

    newest = ", ".join(f"file_{number}" for number in range(10, 30))
    assert omission_names(found) == f"30 container_upload (…, {newest}), 1 gadget"


def test_an_item_of_another_api_goes_by_the_name_that_it_has_there():
    foreign = {"type": "opaque", "kind": "mcp_approval\n_response", "json": "{}"}

    assert omission_names(blocks_to_carry([user("Go.", foreign)])) == "1 mcp_approval _response"


def test_the_file_has_a_line_for_each_piece_and_names_the_file_before():
    found = blocks_to_carry([user("Go.", UPLOAD, gadget())])

    first, *lines = [
        json.loads(line) for line in omissions_text(found, "/a.txt", as_it_is).splitlines()
    ]

    assert first == {"form": 1, "before": "/a.txt"}
    assert lines == [
        {"name": "container_upload file_1", "messages": [user(UPLOAD)]},
        {"name": "gadget", "messages": [user(gadget())]},
    ]
    assert omissions_text([], "", as_it_is) == '{"form":1}\n'


def test_the_file_holds_no_lone_surrogate_and_no_secret():
    secret = gadget(value="key \ud83d")

    def hide(message: Message) -> Message:
        return cast("Message", json.loads(json.dumps(message).replace("key", "[hidden]")))

    stored = omissions_text(blocks_to_carry([user("Go.", secret)]), "", hide)

    assert "[hidden] \ufffd" in stored
    assert "key" not in stored
