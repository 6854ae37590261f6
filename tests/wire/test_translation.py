"""Foreign items become messages and come back: the very same, or changed where a stage has."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from foreign_histories import chats, geminis, responses
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import in_turn
from translations import (
    PIPELINES,
    Storage,
    check_life,
    check_untouched,
    offloading,
    sent_items,
)

from ctxpipe import ContextPipeline, LocalStorage, MemoryStorage
from ctxpipe.session import Session
from ctxpipe.testing.chat_rules import chat_problems
from ctxpipe.testing.gemini_rules import gemini_problems
from ctxpipe.testing.responses_rules import responses_problems
from ctxpipe.wire import ChatCodec, Codec, GeminiCodec, ResponsesCodec, Translation

LINES = "a line of output\n" * 200


@dataclass(frozen=True)
class Form:
    """A form of conversation: its codec, its histories, and what its API refuses."""

    codec: Codec
    histories: Callable[..., st.SearchStrategy[list[Any]]]
    key: str
    problems: Callable[[Any], list[str]]

    def refused(self, items: Sequence[Any]) -> list[str]:
        return self.problems({"model": "m", self.key: items})


CHAT = Form(ChatCodec(), chats, "messages", chat_problems)
RESPONSES = Form(ResponsesCodec(), responses, "input", responses_problems)
GEMINI = Form(GeminiCodec(), geminis, "contents", gemini_problems)
every_form = pytest.mark.parametrize(
    "form", [CHAT, RESPONSES, GEMINI], ids=["chat", "responses", "gemini"]
)


async def turn(session: Session, translation: Translation, items: Sequence[Any]) -> list[Any]:
    """What is sent for *items*."""
    units = translation.read(items)
    result = await session.run(units.messages, system=units.system)
    return translation.items(units, result.messages)


def cuts(items: Sequence[Any]) -> list[int]:
    """Where the history may end when a model is asked."""
    return [
        end
        for end in range(1, len(items) + 1)
        if items[end - 1].get("role") in ("user", "tool")
        or str(items[end - 1].get("type")).endswith("_output")
    ]


# Properties ---------------------------------------------------------------------------------------


@every_form
@given(data=st.data())
def test_what_no_stage_touches_comes_back_as_the_very_same_objects(form: Form, data):
    items = data.draw(form.histories())

    assert not form.refused(items)
    check_untouched(form.codec, items)


@every_form
@given(data=st.data())
def test_a_translation_that_grew_reads_as_one_that_begins(form: Form, data):
    items = data.draw(form.histories())
    grown = Translation(form.codec)
    for end in range(1, len(items)):
        grown.read(copy.deepcopy(items[:end]))

    assert grown.read(items).units == Translation(form.codec).read(items).units


@every_form
@given(data=st.data())
def test_a_history_that_was_cut_or_edited_reads_as_a_new_one(form: Form, data):
    one, other = data.draw(form.histories()), data.draw(form.histories())
    place = data.draw(st.integers(0, min(len(one), len(other)) - 1))
    translation = Translation(form.codec)
    translation.read(one)
    branched = [*one[:place], *other[place:]]

    assert translation.read(branched).units == Translation(form.codec).read(branched).units


@pytest.mark.parametrize(
    ("form", "pipeline"), in_turn([CHAT, RESPONSES, GEMINI], last=list(PIPELINES))
)
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_whatever_the_stages_do_the_api_accepts_it_and_the_prefix_stays(
    form: Form, pipeline: Callable[[Storage], ContextPipeline], data
):
    items = data.draw(form.histories(16))
    forced = data.draw(st.sets(st.integers(0, len(items))))
    session = pipeline(MemoryStorage(clock=float)).session("s")

    anyio.run(check_life, form.codec, session, items, cuts(items), forced, form.refused)


@every_form
@settings(max_examples=10)
@given(data=st.data())
def test_another_process_sends_the_same_bytes(form: Form, data, tmp_path_factory):
    items = data.draw(form.histories())
    folder = tmp_path_factory.mktemp("store")

    first, second = [anyio.run(sent_items, folder, form.codec, items) for _ in range(2)]

    assert json.dumps(first) == json.dumps(second)


# One by one ---------------------------------------------------------------------------------------


def chat_turns(number: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "go"},
    ]
    for turn_number in range(number):
        function = {"name": "bash", "arguments": '{"cmd":  "ls"}'}
        call = {"id": f"call_{turn_number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        result = {"role": "tool", "tool_call_id": f"call_{turn_number}", "content": LINES}
        messages.append(result)
    return messages


async def test_a_long_result_goes_to_a_file_and_the_rest_stays_the_same_object(tmp_path):
    messages = chat_turns(1)

    session = offloading(LocalStorage(tmp_path)).session("s")
    sent = await turn(session, Translation(ChatCodec()), messages)

    assert all(one is other for one, other in zip(sent[:3], messages[:3], strict=True))
    assert "call_0.md" in sent[3]["content"]
    assert sent[3] == {**messages[3], "content": sent[3]["content"]}
    assert (tmp_path / "s" / "call_0.md").read_text() == LINES


async def test_the_same_rebuilt_item_is_sent_in_each_later_turn(tmp_path):
    session = offloading(LocalStorage(tmp_path)).session("s")
    translation = Translation(ChatCodec())

    first = await turn(session, translation, chat_turns(1))
    second = await turn(session, translation, chat_turns(2))

    assert second[3] is first[3]


async def test_ids_that_repeat_are_told_apart(tmp_path):
    messages = chat_turns(2)
    for message in messages[2:]:
        for call in message.get("tool_calls", []):
            call["id"] = "call"
        if message["role"] == "tool":
            message["tool_call_id"] = "call"
    messages[5]["content"] = "short"

    session = offloading(LocalStorage(tmp_path)).session("s")
    sent = await turn(session, Translation(ChatCodec()), messages)

    assert "offloaded" in sent[3]["content"]
    assert sent[3]["tool_call_id"] == "call"
    assert sent[5] is messages[5]


def test_a_message_that_says_what_an_earlier_one_said_is_not_taken_for_it():
    messages: list[dict[str, Any]] = []
    for number in range(30):
        messages.append({"role": "user", "content": "continue"})
        messages.append({"role": "assistant", "content": "done", "number": number})
    translation = Translation(ChatCodec())
    units = translation.read(messages)
    summary: Any = {"role": "user", "content": "A summary."}

    sent = translation.items(units, [summary, *units.messages[-3:]])

    assert sent[0] == summary
    assert [id(item) for item in sent[1:]] == [id(item) for item in messages[-3:]]


CALL = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
ORPHANS: dict[str, tuple[Form, list[Any]]] = {
    "a result in a chat": (
        CHAT,
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "a", "content": "what was asked for"},
            {"role": "tool", "tool_call_id": "b", "content": "what nobody asked for"},
        ],
    ),
    "a call in a chat": (
        CHAT,
        [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "user", "content": "what nobody asked for"},
        ],
    ),
    "a result in responses": (
        RESPONSES,
        [
            {"role": "user", "content": "go"},
            {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "what was asked for"},
            {"type": "function_call_output", "call_id": "b", "output": "what nobody asked for"},
        ],
    ),
    "a call in responses": (
        RESPONSES,
        [
            {"role": "user", "content": "go"},
            {"type": "function_call", "call_id": "a", "name": "read", "arguments": "{}"},
            {"role": "user", "content": "what nobody asked for"},
        ],
    ),
}


@pytest.mark.parametrize("name", ORPHANS)
def test_half_a_pair_that_is_all_that_stays_is_said_as_a_text(name: str):
    form, items = ORPHANS[name]
    translation = Translation(form.codec)
    units = translation.read(items)
    summary: Any = {"role": "user", "content": "A summary."}
    taken: Any = {"role": "assistant", "content": "I have it."}
    last: Any = units.messages[-1]["content"]
    words: Any = {"role": "user", "content": last if isinstance(last, str) else last[-1]["text"]}

    sent = translation.items(units, [summary, taken, words])

    assert form.refused(sent) == []
    assert "what nobody asked for" in json.dumps(sent)


@pytest.mark.parametrize("name", ORPHANS)
def test_half_a_pair_stays_as_a_text_where_something_else_has_left(name: str):
    form, items = ORPHANS[name]
    translation = Translation(form.codec)
    units = translation.read(items)
    summary: Any = {"role": "user", "content": "A summary."}

    assert form.refused(translation.items(units, units.messages)) == form.refused(items) != []
    sent = translation.items(units, [summary, *units.messages[1:]])
    assert form.refused(sent) == []
    assert "what nobody asked for" in json.dumps(sent)


def test_an_item_that_was_edited_in_place_is_read_again():
    messages = chat_turns(30)
    translation = Translation(ChatCodec())
    translation.read(messages)
    messages[5]["content"] = "another result"

    assert translation.read(messages).units == Translation(ChatCodec()).read(messages).units


def test_a_prompt_of_the_system_that_changes_leaves_the_messages_the_same_objects():
    translation = Translation(ChatCodec())
    before = translation.read(chat_turns(20))
    changed = chat_turns(20)
    changed[0]["content"] = "It is 10 o'clock."

    after = translation.read(changed)

    assert after.system == [{"type": "text", "text": "It is 10 o'clock."}]
    same = [one is other for one, other in zip(before.messages, after.messages, strict=True)]
    assert sum(same) > 30


def test_a_cache_mark_that_moves_stays_where_the_caller_has_put_it():
    messages = chat_turns(3)
    translation = Translation(ChatCodec())
    translation.read(messages[:4])
    marked = {**messages[5], "cache_control": {"type": "ephemeral"}}
    moved = [*messages[:5], marked, *messages[6:]]

    units = translation.read(moved)

    assert translation.items(units, list(units.messages))[5] is marked


def test_what_the_provider_has_compacted_is_left_alone():
    before = [{"role": "user", "content": "go"}, {"role": "user", "content": "on"}]
    compaction = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}
    after = [{"role": "user", "content": "now"}]
    translation = Translation(ResponsesCodec())

    translation.read(before)
    units = translation.read([*before, compaction, *after])

    assert units.head == 3
    assert [message["content"] for message in units.messages] == ["now"]
    assert translation.items(units, [{"role": "user", "content": "other"}])[:3] == [
        *before,
        compaction,
    ]
