"""Whatever LangChain's messages are: they come back, paired, with their prefix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio
import pytest
from foreign_histories import ARGUMENTS, IMAGE, NAMES, SAID, TEXT, call_ids
from histories import MARK
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import NIGHTLY
from translations import PIPELINES, Storage, check_life, check_untouched, compacting, sent_items
from unknown_items import MARKER, check_unknown, with_unknown

from ctxpipe import ContextPipeline, MemoryStorage

pytest.importorskip("langchain", reason="the extra ctxpipe[langchain] is not installed")

from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from ctxpipe.adapters.langchain import LangChainCodec

PICTURES: list[Any] = [
    {"type": "image_url", "image_url": {"url": IMAGE, "detail": "low"}},
    {"type": "image", "source_type": "base64", "mime_type": "image/png", "data": "QUJD" * 900},
    {"type": "image", "url": "https://a.example/b.png"},
    {"type": "moon", "phase": "full"},
]
# No client encodes a lone surrogate in arguments.
GIVEN = TEXT.filter(lambda text: "\ud800" not in text)
every_pipeline = pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda make: make.__name__)


# Messages -----------------------------------------------------------------------------------------


@st.composite
def contents(draw: Any) -> Any:
    if draw(st.booleans()):
        return draw(SAID)
    part = {"type": "text", "text": draw(SAID)}
    if draw(st.booleans()):
        part |= MARK
    return [part, *draw(st.lists(st.sampled_from(PICTURES), max_size=2))]


@st.composite
def calls(draw: Any, at: int) -> list[Any]:
    """A message with calls in the form of one of the providers, and the results."""
    names = call_ids(draw(st.integers(1, 3)), at)
    content: list[Any] = []
    if draw(st.booleans()):
        content.append({"type": "thinking", "thinking": draw(SAID), "signature": f"S{at}"})
    words = draw(TEXT)
    if words:
        content.append({"type": "text", "text": words})
    is_in_content = draw(st.booleans())
    valid: list[Any] = []
    broken: list[Any] = []
    for name in names:
        tool = draw(NAMES)
        if draw(st.integers(0, 5)) == 0:
            text = draw(ARGUMENTS)
            broken.append({"id": name, "name": tool, "args": text, "error": None})
            continue
        given = {"path": "a.py", "text": draw(GIVEN)}
        valid.append({"id": name, "name": tool, "args": given})
        if is_in_content:
            content.append({"type": "tool_use", "id": name, "name": tool, "input": given})
    said: Any = content if content and is_in_content else words
    id_ = draw(st.sampled_from([None, f"m{at}"]))
    reply = AIMessage(said, tool_calls=valid, invalid_tool_calls=broken, id=id_)
    order = [*(call["id"] for call in valid), *(call["id"] for call in broken)]
    return [reply, *(draw(results(name)) for name in draw(st.permutations(order)))]


@st.composite
def results(draw: Any, name: str) -> ToolMessage:
    text = draw(TEXT)
    content: Any = draw(st.sampled_from([text, [{"type": "text", "text": text, **MARK}]]))
    status: Any = draw(st.sampled_from(["success", "error"]))
    artifact = draw(st.sampled_from([None, {"a": 1}]))
    return ToolMessage(content, tool_call_id=name, status=status, artifact=artifact, id=f"r{name}")


@st.composite
def words(draw: Any) -> list[Any]:
    said = AIMessage(draw(TEXT), id="m")
    asked = HumanMessage(draw(contents()))
    noted = SystemMessage(draw(SAID))
    ways = [[said], [said, asked], [said, asked, noted, asked], [asked]]
    chosen: list[Any] = draw(st.sampled_from(ways))
    return chosen


@st.composite
def histories(draw: Any, most: int = 8) -> list[Any]:
    """Messages that end with the user or with results."""
    messages: list[Any] = []
    if draw(st.booleans()):
        messages.append(SystemMessage(draw(SAID)))
    messages.append(HumanMessage(draw(contents())))
    for at in range(draw(st.integers(1, most))):
        messages += draw(st.one_of(calls(at), words()))
    if isinstance(messages[-1], AIMessage | SystemMessage):
        messages.append(HumanMessage(draw(contents())))
    return messages


def problems(messages: Sequence[Any]) -> list[str]:
    """What a provider would refuse: calls and results that are not side by side."""
    found: list[str] = []
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                found.append(f"{message.tool_call_id} has no call before it")
            else:
                open_calls.remove(message.tool_call_id)
            continue
        found += [f"{name} has no result" for name in open_calls]
        open_calls = []
        if isinstance(message, AIMessage):
            both = [*message.tool_calls, *message.invalid_tool_calls]
            open_calls = [str(call["id"]) for call in both]
            shown = [part for part in message.content if isinstance(part, dict)]
            used = {part["id"] for part in shown if part["type"] == "tool_use"}
            found += [f"{name} is no call" for name in used - {*open_calls}]
    return found + [f"{name} has no result" for name in open_calls]


def ends(messages: Sequence[Any]) -> list[int]:
    """Where the history may end when a model is asked."""
    asking = (HumanMessage, ToolMessage)
    return [end for end in range(1, len(messages) + 1) if isinstance(messages[end - 1], asking)]


# Properties ---------------------------------------------------------------------------------------


@given(histories())
def test_what_no_stage_touches_comes_back_as_the_very_same_objects(items: list[Any]):
    assert not problems(items)
    check_untouched(LangChainCodec(), items)


@every_pipeline
@settings(max_examples=25)
@given(data=st.data())
def test_whatever_the_stages_do_calls_keep_their_results_and_the_prefix_stays(
    pipeline: Callable[[Storage], ContextPipeline], data
):
    items = data.draw(histories(12))
    forced = data.draw(st.sets(st.integers(0, len(items))))
    session = pipeline(MemoryStorage(clock=float)).session("s")

    anyio.run(check_life, LangChainCodec(), session, items, ends(items), forced, problems)


@settings(max_examples=10)
@given(items=histories())
def test_a_new_process_sends_the_same_bytes(items: list[Any], tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")

    first, second = [
        [message.model_dump() for message in anyio.run(sent_items, folder, LangChainCodec(), items)]
        for _ in range(2)
    ]

    assert repr(first) == repr(second)


# Unknown classes and parts ------------------------------------------------------------------------


def unknown_message(fields: dict[str, Any]) -> ChatMessage:
    return ChatMessage(content="", role="moon", additional_kwargs=fields)


def add_part(message: Any, fields: dict[str, Any]) -> Any:
    if not isinstance(message, HumanMessage) or isinstance(message.content, str):
        return message
    return HumanMessage([*message.content, {"type": "star", **fields}])


def is_known(message: Any) -> bool:
    return not isinstance(message, ChatMessage)


def unknown_parts(message: Any) -> Sequence[Any]:
    """The message itself, if its class says nothing, else the unknown parts in it."""
    if isinstance(message, ChatMessage):
        return [message]
    if not isinstance(message, HumanMessage):
        return []
    return [part for part in message.content if isinstance(part, dict) and MARKER in part]


@settings(max_examples=(2 if NIGHTLY else 1) * settings().max_examples)
@given(items=with_unknown(histories(), unknown_message, add_part), data=st.data())
def test_unknown_messages_and_parts_stay_word_for_word_in_their_order(items: list[Any], data):
    forced = data.draw(st.sets(st.integers(1, len(items))))
    session = compacting(MemoryStorage(clock=float)).session("s")

    anyio.run(
        check_unknown, LangChainCodec(), session, items, forced, unknown_parts, problems, is_known
    )
