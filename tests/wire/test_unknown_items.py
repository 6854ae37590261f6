"""Items of unknown types: whose they are, and that they stay where they are."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from ctxpipe import Budget, Compact, ContextPipeline, MemoryStorage
from ctxpipe.messages import check, is_opaque
from ctxpipe.stages.reports import Compacted
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.wire import CHAT, RESPONSES, Adapter, ChatCodec, ResponsesCodec, Translation
from ctxpipe.wire.exchange import HttpExchange

USER: dict[str, Any] = {"role": "user", "content": "go"}
REPLY: dict[str, Any] = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Y"}],
}
TOOLS: dict[str, Any] = {
    "type": "additional_tools",
    "role": "developer",
    "tools": [{"type": "custom"}],
}
MOON: dict[str, Any] = {"type": "moon_phase", "id": "mo_1", "phase": "full"}
SUN: dict[str, Any] = {"type": "sun_phase", "phase": "noon"}


def call(name: str) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "bash", "arguments": "{}"}


def output(name: str, text: str = "") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": text or f"of {name}"}


def kinds(message: Any) -> list[str]:
    content = message["content"]
    return ["text"] if isinstance(content, str) else [block["type"] for block in content]


def read(*items: Any) -> tuple[list[Any], Translation]:
    """The messages of *items*, which break no rule, and come back as the very same objects."""
    translation = Translation(ResponsesCodec())
    units = translation.read(items)
    assert not check(units.messages)
    back = translation.items(units, copy.deepcopy(units.messages))
    assert [id(item) for item in back] == [id(item) for item in items]
    return units.messages, translation


# Whose they are -----------------------------------------------------------------------------------


def test_an_item_of_an_unknown_type_is_an_opaque_block_of_the_users_with_its_whole_json():
    [_, message, _], _ = read(USER, {**MOON, "data": "QUJD" * 1_000}, USER)

    [block] = message["content"]
    assert message["role"] == "user"
    assert (block["type"], block["kind"]) == ("opaque", "moon_phase")
    assert json.loads(block["json"]) == {**MOON, "data": "QUJD" * 1_000}


def test_cache_marks_at_any_depth_do_not_make_another_block():
    marked = {**MOON, "parts": [{"text": "x", "cache_control": {"type": "ephemeral"}}]}
    plain = {**MOON, "parts": [{"text": "x"}]}

    assert ResponsesCodec().read(marked) == ResponsesCodec().read(plain)


@pytest.mark.parametrize("role", ["critic", None])
def test_a_chat_message_of_an_unknown_role_is_opaque(role):
    [block] = ChatCodec().read({"role": role, "content": "No."}).blocks

    assert block["type"] == "opaque"


def test_unknown_items_are_never_joined_with_each_other_or_with_a_reply():
    messages, _ = read(USER, REPLY, MOON, SUN, REPLY, USER)

    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "user",
        "user",
        "assistant",
        "user",
    ]


async def exchange_of(adapter: Adapter, items: list[Any]) -> HttpExchange:
    exchange = HttpExchange(adapter.conversations, RESPONSES, adapter.find)
    await exchange.shape_bytes(json.dumps({"model": "m", "input": items}).encode())
    return exchange


def event(name: str, **fields: Any) -> bytes:
    return b"data: " + json.dumps({"type": name, **fields}).encode() + b"\n\n"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_what_arrived_in_a_reply_is_part_of_that_reply_whatever_its_type(is_stream: bool):
    adapter = Adapter(ContextPipeline(), "s")
    exchange = await exchange_of(adapter, [USER])
    exchange.begin_answer(200, "text/event-stream" if is_stream else "application/json")
    if is_stream:  # the client may stop before the end
        exchange.feed(event("response.output_item.done", item={**MOON, "status": "completed"}))
    else:
        exchange.feed(json.dumps({"object": "response", "output": [MOON]}).encode())
    exchange.end()

    later = {"type": "moon_phase", "phase": "full", "id": None}  # as a client without ids sends it
    shaped = await exchange_of(adapter, [USER, later, USER])

    assert [message["role"] for message in shaped.result.messages] == ["user", "assistant", "user"]
    assert not is_opaque(shaped.result.messages[1]["content"])


async def test_tools_that_arrived_in_a_reply_stay_opaque_for_they_govern_the_model():
    adapter = Adapter(ContextPipeline(), "s")
    exchange = await exchange_of(adapter, [USER])
    exchange.begin_answer(200, "application/json")
    exchange.feed(json.dumps({"object": "response", "output": [TOOLS]}).encode())
    exchange.end()

    shaped = await exchange_of(adapter, [USER, TOOLS, REPLY, USER])

    assert kinds(shaped.result.messages[1]) == ["opaque"]


async def test_a_request_for_the_providers_own_compaction_goes_out_as_it_came():
    exchange = await exchange_of(
        Adapter(ContextPipeline(), "s"), [USER, {"type": "compaction_trigger"}]
    )

    assert not exchange.is_shaped
    assert "compaction" in exchange.reason


# At the beginning ---------------------------------------------------------------------------------


def head(*items: Any, room: int = 1_000) -> int:
    codec = ResponsesCodec().for_conversations(room, lambda _: False)
    return Translation(codec).read(items).head


def test_leading_unknown_items_belong_to_the_head():
    system = {"role": "developer", "content": "Be brief."}

    assert head(TOOLS, system, MOON, USER, REPLY, USER) == 3


def test_the_unknown_item_that_the_first_reply_answers_is_what_was_asked():
    assert head(MOON) == 0
    assert head(SUN, MOON) == 1
    assert head(SUN, MOON, REPLY, USER) == 1
    assert head(TOOLS, REPLY, USER) == 1


def test_unknown_items_that_take_too_much_room_are_no_head():
    large = {**MOON, "text": "x" * 900}

    assert head(SUN, large, large, USER) == 2


def test_unknown_items_that_speak_for_the_system_may_take_twice_the_room():
    large = {**TOOLS, "text": "x" * 1_500}
    system = {"role": "developer", "content": "Be brief."}

    assert head(large, system, USER, REPLY, USER) == 2
    assert head(large, large, USER, REPLY, USER) == 1
    assert head({**large, "role": "user"}, system, USER, REPLY, USER) == 0


def test_what_the_head_says_is_counted_with_the_system_prompt():
    units = Translation(ResponsesCodec()).read([{**TOOLS, "more": "QUJD" * 1_000}, USER])

    assert "QUJD" * 1_000 in units.system[0]["text"]


# Beside calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "items",
    [
        [call("a"), MOON, output("a")],
        [call("a"), call("b"), output("a"), MOON, output("b")],
        [call("a"), MOON, call("b"), output("a"), output("b")],
        [call("a"), MOON, call("b"), SUN, output("b"), MOON, output("a")],
    ],
    ids=["before the output", "between outputs", "between calls", "everywhere"],
)
def test_an_unknown_item_between_the_halves_of_calls_goes_with_the_results(items: list[Any]):
    messages, translation = read(USER, *items, USER)
    unknown = sum(item in (MOON, SUN) for item in items)
    calls = sum(item["type"] == "function_call" for item in items)

    assert [message["role"] for message in messages] == ["user", "assistant", "user", "user"]
    assert kinds(messages[2]) == ["tool_result"] * calls + ["opaque"] * unknown
    changed = copy.deepcopy(messages)
    changed[2]["content"][0]["content"] = "[offloaded]"
    units = translation.read([USER, *items, USER])
    sent = translation.items(units, changed)
    first = next(place for place, item in enumerate(items) if "output" in item)
    expected = [{**item} for item in items]
    expected[first]["output"] = "[offloaded]"
    assert sent[1:-1] == expected


def test_an_unknown_item_behind_an_open_call_is_sent_with_it():
    messages, _ = read(USER, call("a"), MOON)

    assert kinds(messages[-1]) == ["tool_use"]


def test_an_unknown_call_with_its_output_is_a_pair_whose_output_can_be_offloaded():
    asked = {"type": "moon_call", "call_id": "m", "phase": "full"}
    answer = {"type": "moon_call_output", "call_id": "m", "output": "long"}
    messages, translation = read(USER, asked, answer, USER)

    assert list(map(kinds, messages))[1:3] == [["tool_use"], ["tool_result"]]
    changed = copy.deepcopy(messages)
    changed[2]["content"][0]["content"] = "[offloaded]"
    units = translation.read([USER, asked, answer, USER])
    assert translation.items(units, changed)[1:3] == [asked, {**answer, "output": "[offloaded]"}]


def test_an_unknown_output_may_answer_a_known_call():
    messages, _ = read(USER, call("a"), {"type": "moon_output", "call_id": "a", "text": "x"}, USER)

    assert list(map(kinds, messages))[1:3] == [["tool_use"], ["tool_result"]]


@pytest.mark.parametrize(
    "items",
    [
        [{"type": "moon_call", "call_id": "m"}],
        [{"type": "moon_call_output", "call_id": "m", "output": "x"}],
        [{"type": "moon_call", "call_id": "m"}, USER, {"type": "moon_call_output", "call_id": "m"}],
        [call("a"), {"type": "moon_output", "call_id": "a"}, output("a")],
    ],
    ids=["call", "output", "apart", "both outputs"],
)
def test_a_half_of_an_unknown_type_without_its_other_half_is_opaque(items: list[Any]):
    messages, _ = read(USER, *items, USER)

    opaque = [block for message in messages for block in message["content"] if is_opaque(block)]
    assert len(opaque) == sum("moon" in item.get("type", "") for item in items)


def test_an_approval_answers_its_request():
    asked = {"type": "mcp_approval_request", "id": "r", "name": "deploy", "arguments": "{}"}
    approval = {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True}

    assert list(map(kinds, read(USER, asked, approval)[0])) == [
        ["text"],
        ["tool_use"],
        ["tool_result"],
    ]
    assert list(map(kinds, read(USER, asked, USER)[0])) == [["text"]] * 3


def test_a_tool_search_of_the_client_answers_with_references_to_tools():
    search: dict[str, Any] = {
        "type": "tool_search_call",
        "call_id": "t",
        "execution": "client",
        "arguments": {},
    }
    found = {"type": "function", "name": "create_event"}
    answer: dict[str, Any] = {
        "type": "tool_search_output",
        "call_id": "t",
        "execution": "client",
        "tools": [found],
    }
    [_, asked, answered], translation = read(USER, search, answer)

    [result] = answered["content"]
    opaque, reference = result["content"]
    assert kinds(asked) == ["tool_use"]
    assert is_opaque(opaque)
    assert reference == {"type": "tool_reference", "tool_name": "create_event"}
    changed: list[Any] = copy.deepcopy([asked, answered])
    changed[1]["content"][0]["content"] = "[offloaded]"
    units = translation.read([USER, search, answer])
    assert translation.items(units, [units.messages[0], *changed])[2] is answer


def test_a_tool_search_of_the_server_is_part_of_the_reply():
    search: dict[str, Any] = {
        "type": "tool_search_call",
        "call_id": None,
        "execution": "server",
        "arguments": {},
    }
    answer: dict[str, Any] = {
        "type": "tool_search_output",
        "call_id": None,
        "execution": "server",
        "tools": [],
    }

    messages, _ = read(USER, search, answer, REPLY, USER)

    assert list(map(kinds, messages)) == [["text"], ["opaque", "opaque", "text"], ["text"]]


async def items_after_compaction(form: Any, items: list[Any], storage: MemoryStorage) -> list[Any]:
    """Return the items of a request whose history is *items*, once it is compacted."""
    compact = Compact(ExtractiveSummarizer(), storage)
    adapter = Adapter(ContextPipeline([compact], budget=Budget(2_000)), "s")
    reply, question = items[-2:]
    long = {**question, "content": "word " * 2_000}
    exchange = await adapter.begin(form.codec, [*items, long, reply, question])
    assert exchange is not None
    assert exchange.result.changed
    return list(exchange.items)


@pytest.mark.parametrize("has_reasoning", [False, True])
async def test_tools_that_a_search_of_the_server_has_loaded_stay_loaded(has_reasoning: bool):
    found = {"type": "function", "name": "create_event"}
    halves: dict[str, Any] = {"call_id": None, "execution": "server"}
    search = {"type": "tool_search_call", "id": "tsc_1", "arguments": {}, **halves}
    answer = {"type": "tool_search_output", "id": "tso_1", "tools": [found], **halves}
    empty = {**answer, "id": "tso_2", "tools": []}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    before = [thought] if has_reasoning else []
    other = {**search, "id": "tsc_2"}
    items = [USER, *before, search, answer, REPLY, USER, other, empty, REPLY, USER]

    sent = await items_after_compaction(RESPONSES, items, MemoryStorage())

    assert sent.count(answer) == 1
    assert empty not in sent
    [carried] = [item for item in sent if item.get("type") == "tool_search_call"]
    assert carried == ({**search} if not has_reasoning else without_id(search))
    assert sent.index(answer) == sent.index(carried) + 1


def without_id(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it may be sent once the reasoning before it has left."""
    return {key: value for key, value in item.items() if key != "id"}


async def test_tools_that_a_result_refers_to_stay_loaded_in_a_chat():
    function = {"name": "search_tools", "arguments": "{}"}
    wanted = {"id": "c", "type": "function", "function": function}
    reference = {"type": "tool_reference", "tool_name": "create_event"}
    search = {"role": "assistant", "content": None, "tool_calls": [wanted]}
    answer = {"role": "tool", "tool_call_id": "c", "content": [reference]}
    reply = {"role": "assistant", "content": "Yes."}

    sent = await items_after_compaction(CHAT, [USER, search, answer, reply, USER], MemoryStorage())

    assert search in sent
    assert sent[sent.index(search) + 1] == answer


async def test_an_unknown_item_about_an_answered_call_is_compacted_with_the_call():
    progress = {"type": "moon_progress", "call_id": "a", "percent": 50}
    other = {**progress, "call_id": "b"}  # of no call in the history
    items = [USER, call("a"), progress, output("a"), progress, other, REPLY, USER]

    sent = await items_after_compaction(RESPONSES, items, MemoryStorage())

    assert progress not in sent
    assert sent.count(other) == 1


# What the system says later -----------------------------------------------------------------------


@pytest.mark.parametrize("form", ["chat", "responses"])
async def test_words_of_the_system_stay_word_for_word_wherever_they_are(form: str):
    reply = {"role": "assistant", "content": "Yes."}
    rule: dict[str, Any] = {"role": "system", "content": "No deploys.", "tools": [{"name": "x"}]}
    other = {"role": "system", "content": "Be brief."}
    items = [USER, reply, rule, USER, reply, other, USER, reply, other, reply, USER]

    sent = await items_after_compaction(
        CHAT if form == "chat" else RESPONSES, items, MemoryStorage()
    )

    assert sent.count(rule) == 1
    assert sent.count(other) == 1  # what is repeated is there once
    assert sent.index(rule) < sent.index(other)


SEARCH: dict[str, Any] = {
    "type": "tool_search_call",
    "id": "tsc_1",
    "call_id": None,
    "execution": "server",
    "arguments": {},
}
FOUND: dict[str, Any] = {
    **SEARCH,
    "type": "tool_search_output",
    "id": "tso_1",
    "tools": [{"type": "function", "name": "create_event"}],
}
GOVERNING: dict[str, list[dict[str, Any]]] = {
    "words of the system": [{"role": "system", "content": "No deploys."}],
    "words of the developer": [{"role": "developer", "content": "No deploys."}],
    "an unknown item of the developer": [{"type": "moon", "role": "developer", "text": "No."}],
    "definitions of tools": [TOOLS],
    "an unknown item with tools": [{**MOON, "tools": [{"name": "create_event"}]}],
    "a search of the server": [SEARCH, FOUND],
    "a search of the client": [
        {**SEARCH, "call_id": "t", "execution": "client"},
        {**FOUND, "call_id": "t", "execution": "client"},
    ],
}


@pytest.mark.parametrize("governing", GOVERNING.values(), ids=GOVERNING)
@pytest.mark.parametrize("places", [[0], [4], [0, 4, 8]])
@pytest.mark.parametrize("length", [900, 6_000])
@pytest.mark.parametrize("size", [1, 150])
async def test_long_words_of_the_user_never_push_out_what_governs_the_model(
    governing: list[dict[str, Any]], places: list[int], length: int, size: int
):
    *others, last = governing
    governing = [*others, {**last, "content": "Never. " * size}]
    items: list[dict[str, Any]] = [USER, REPLY] * 5
    for number in places:
        items[number] = {**USER, "content": f"Wish {number}: " + "word " * length}
    filler = {**REPLY, "content": [{"type": "output_text", "text": "done " * 3_000}]}
    items = [*items[:6], *governing, *items[6:], filler, USER]
    compact = Compact(ExtractiveSummarizer(), MemoryStorage())
    adapter = Adapter(ContextPipeline([compact], budget=Budget(2_000)), "s")

    exchange = await adapter.begin(RESPONSES.codec, items)

    assert exchange is not None
    [report] = exchange.result.reports
    assert isinstance(report.detail, Compacted)
    assert not report.detail.over_target
    sent = list(exchange.items)
    assert [item for item in sent if item in governing] == governing


# Reasoning ----------------------------------------------------------------------------------------


def test_reasoning_stays_with_what_it_led_to_across_an_unknown_item():
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    codec = ResponsesCodec()
    wanted = {**call("a"), "id": "fc_1"}
    given = [USER, thought, {**MOON, "id": "m"}, wanted, output("a"), USER]
    halves = list(map(codec.halves, given))

    def repaired(*sources: int) -> list[Any]:
        pairs: Any = [(source, given[source]) for source in sources]
        return [item for _, item in codec.repair(pairs, given, halves)]

    assert repaired(0, 1, 2, 3, 4, 5) == given
    assert repaired(0, 1, 2, 5) == [USER, given[2], USER]
    assert repaired(0, 2, 3, 4, 5) == [USER, given[2], call("a"), output("a"), USER]


# Over many turns ----------------------------------------------------------------------------------


def test_what_later_items_make_of_unknown_ones_is_what_a_new_reading_makes_of_them():
    asked = {"type": "moon_call", "call_id": "m"}
    answer = {"type": "moon_call_output", "call_id": "m", "output": "x"}
    items = [USER, REPLY, MOON, asked, call("a"), SUN, call("b"), output("b"), answer, output("a")]
    items += [MOON, REPLY, SUN, call("c"), MOON]
    grown = Translation(ResponsesCodec())

    for end in range(1, len(items) + 1):
        new = Translation(ResponsesCodec()).read(items[:end])
        assert grown.read(copy.deepcopy(items[:end])).units == new.units


def test_an_answered_chat_message_of_an_unknown_role_stays_between_call_and_result():
    function = {"name": "look", "arguments": "{}"}
    wanted = {"id": "c", "type": "function", "function": function}
    critic = {"role": "critic", "content": "Hm."}
    items: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [wanted]},
        critic,
        {"role": "tool", "tool_call_id": "c", "content": "long"},
    ]
    translation = Translation(CHAT.codec)  # type: ignore[arg-type]
    units = translation.read(items)

    assert list(map(kinds, units.messages)) == [["text"], ["tool_use"], ["tool_result", "opaque"]]
    changed: list[Any] = copy.deepcopy(units.messages)
    changed[2]["content"][0]["content"] = "short"
    assert translation.items(units, changed) == [*items[:3], {**items[3], "content": "short"}]
