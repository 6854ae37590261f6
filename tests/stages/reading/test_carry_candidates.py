"""The content that must not be summarized."""

from __future__ import annotations

import json
from typing import Any

import pytest
from histories import PICTURE, assistant, said, step, system, tool_result, tool_use, user

from ctxpipe.messages import blocks, kind
from ctxpipe.stages.compact.arrangement import arrange
from ctxpipe.stages.reading.carry_candidates import CarryKind, blocks_to_carry, is_reference

UPLOAD = {"type": "container_upload", "file_id": "file_1"}


REFERENCE = {"type": "tool_reference", "tool_name": "create_event"}


def gadget(number: int = 1, **values: Any) -> dict[str, Any]:
    return {"type": "gadget", "number": number, **values}


def source(name: str, **values: str) -> dict[str, Any]:
    return {"type": name, "source": values}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (UPLOAD, True),
        (source("document", type="file", file_id="file_2"), True),
        (source("document", type="url", url="https://example.com/a.pdf"), True),
        (source("image", type="url", url="https://example.com/a.png"), True),
        (source("image", type="file", file_id="file_3"), True),
        (source("image", type="url", url="data:image/png;base64,iVBORw0K"), False),
        (source("document", type="text", data="all of it"), False),
        (PICTURE, False),
        ({"type": "text", "text": "file_1"}, False),
        ({"type": "image"}, False),
    ],
)
def test_a_reference_holds_an_id_or_an_address_and_no_content(block: Any, expected: bool):
    assert is_reference(block) is expected


def test_unknown_blocks_before_the_first_words_are_leading():
    history = [user(gadget(1)), user(gadget(2), "Go.", gadget(3)), assistant("ok"), user(gadget(4))]

    found = blocks_to_carry(history)

    assert [(one.kind, one.key) for one in found] == [
        (CarryKind.LEADING, (0, 0)),
        (CarryKind.LEADING, (1, 0)),
        (CarryKind.BLOCK, (1, 2)),
        (CarryKind.BLOCK, (3, 0)),
    ]


def test_a_reference_is_never_leading_because_it_defines_nothing():
    [found] = blocks_to_carry([user(UPLOAD, "Go.")])

    assert found.kind == CarryKind.BLOCK


def opaque(**item: Any) -> dict[str, Any]:
    return {"type": "opaque", "kind": "moon", "json": json.dumps(item, separators=(",", ":"))}


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        (opaque(role="developer", tools=[{"name": "x"}]), CarryKind.TOOLS),
        (opaque(tools=[]), CarryKind.TOOLS),
        (gadget(tools=[{"name": "x"}]), CarryKind.TOOLS),
        (REFERENCE, CarryKind.TOOLS),
        (opaque(role="developer", text="No deploys."), CarryKind.INSTRUCTION),
        (opaque(role="system"), CarryKind.INSTRUCTION),
        ({"type": "opaque", "kind": "system message", "json": "{}"}, CarryKind.INSTRUCTION),
        (opaque(role="critic", tools="none"), CarryKind.BLOCK),
        (opaque(text='"tools":[] "role":"system"'), CarryKind.BLOCK),
        ({"type": "opaque", "kind": "moon", "json": '{"tools":[' * 100_000}, CarryKind.BLOCK),
        ({"type": "opaque", "kind": "moon", "json": '[{"role":"system"}]'}, CarryKind.BLOCK),
        ({"type": "opaque", "kind": "moon"}, CarryKind.BLOCK),
        (gadget(role=["system"]), CarryKind.BLOCK),
        (UPLOAD, CarryKind.BLOCK),
    ],
)
def test_a_block_that_defines_tools_or_has_the_role_of_the_system_governs_the_model(
    block: Any, expected: CarryKind
):
    [found] = blocks_to_carry([user("Go."), assistant("ok"), user(block)])

    assert found.kind == expected


def test_a_call_that_loaded_a_tool_is_carried_with_its_result_and_without_other_calls():
    search = tool_use("s", "find_tools")
    other = tool_use("b")
    loaded = tool_result("s", [REFERENCE])
    history = [user("Go."), assistant("Well.", search, other), user(loaded, tool_result("b"))]

    [found] = blocks_to_carry(history)

    assert found.messages == [assistant(search), user(loaded)]
    assert blocks(found.messages[0])[0] is search
    assert str(found) == "tool_reference create_event"


def test_an_exchange_that_does_nothing_but_load_tools_is_the_very_same_messages():
    history = [user("Go."), *step("s", "find_tools", {}, [REFERENCE])]

    [found] = blocks_to_carry(history)

    assert all(one is other for one, other in zip(found.messages, history[1:], strict=True))


def test_a_search_of_the_servers_that_loaded_tools_is_carried():
    call = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "tool_search", "input": {}}
    content = {"type": "tool_search_tool_search_result", "tool_references": [REFERENCE]}
    found_tools = {
        "type": "tool_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": content,
    }

    [found] = blocks_to_carry([user("Go."), assistant("Well.", call, found_tools, "Done.")])

    assert found.messages == [assistant(call, found_tools)]


def test_a_result_without_tool_references_is_not_carried():
    assert blocks_to_carry([user("Go."), *step("s", "find_tools", {}, "none")]) == []


def test_system_messages_are_no_blocks_to_carry():
    assert blocks_to_carry([user("Go."), system([gadget()]), assistant("ok")]) == []
    assert said(arrange([])) == []
    assert kind(gadget()) == "gadget"
