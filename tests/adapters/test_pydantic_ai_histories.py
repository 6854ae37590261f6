"""Whatever pydantic-ai's messages are: they come back, paired, with their prefix."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest
from foreign_histories import ARGUMENTS, NAMES, SAID, TEXT, call_ids
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import NIGHTLY
from translations import PIPELINES, Storage, check_life, check_untouched, compacting, sent_items
from unknown_items import check_unknown, with_unknown

from ctxpipe import ContextPipeline, LocalStorage, MemoryStorage

pytest.importorskip("pydantic_ai", reason="the extra ctxpipe[pydantic-ai] is not installed")

import pydantic_ai.messages as parts
from pydantic_ai.messages import (
    BinaryContent,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from ctxpipe.adapters.pydantic_ai import PydanticCodec
from ctxpipe.wire import Translation

PICTURES: list[Any] = [
    BinaryContent(b"\x89PNG" * 900, media_type="image/png"),
    ImageUrl("https://a.example/b.png"),
]
# pydantic encodes no lone surrogate, in arguments and results.
GIVEN = TEXT.filter(lambda text: "\ud800" not in text)
every_pipeline = pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda make: make.__name__)


# Tools that were loaded ---------------------------------------------------------------------------


def loads() -> dict[str, list[Any]]:
    """Exchanges that load tools, as far as the installed pydantic-ai knows them."""
    found = {"discovered_tools": [{"name": "create_event"}]}
    local = [
        ModelResponse([parts.ToolSearchCallPart(args={"queries": ["x"]}, tool_call_id="a")]),
        ModelRequest([parts.ToolSearchReturnPart(content=found, tool_call_id="a")]),  # type: ignore[arg-type]
    ]
    native = [
        ModelResponse(
            [
                parts.NativeToolSearchCallPart(args={"queries": ["x"]}, tool_call_id="a"),
                parts.NativeToolSearchReturnPart(content=found, tool_call_id="a"),  # type: ignore[arg-type]
            ]
        ),
    ]
    return {"local": local, "native": native}


@pytest.mark.skipif(
    not hasattr(parts, "NativeToolSearchReturnPart"), reason="this pydantic-ai has no tool search"
)
@pytest.mark.parametrize("kind", ["local", "native"])
async def test_tools_that_a_search_has_loaded_stay_loaded(kind: str, tmp_path):
    load = loads()[kind]
    asked = ModelRequest([UserPromptPart("go")])
    long = ModelRequest([UserPromptPart("word " * 20_000)])
    reply = ModelResponse([TextPart("Yes.")])
    history = [asked, *load, reply, long, reply, asked]
    session = compacting(LocalStorage(tmp_path)).session("s")
    translation = Translation(PydanticCodec())

    units = translation.read(history)
    result = await session.run(units.messages, force=True)
    sent = translation.items(units, result.messages)

    assert long not in sent
    place = sent.index(load[0])
    assert sent[place : place + len(load)] == load


async def test_the_system_prompt_stays_when_the_first_request_is_compacted(tmp_path):
    prompt = SystemPromptPart("Never deploy.")
    reply = ModelResponse([TextPart("Yes.")])
    asked = ModelRequest([UserPromptPart("go")])
    long = ModelRequest([prompt, UserPromptPart("word " * 20_000)])
    session = compacting(LocalStorage(tmp_path)).session("s")
    translation = Translation(PydanticCodec())

    for _ in range(2):
        units = translation.read([long, reply, asked, reply, asked])
        result = await session.run(units.messages, force=True)
        sent = translation.items(units, result.messages)

        assert long not in sent
        assert sent[0].parts[0] is prompt


# Messages -----------------------------------------------------------------------------------------


@st.composite
def prompts(draw: Any) -> UserPromptPart:
    if draw(st.booleans()):
        return UserPromptPart(draw(SAID))
    return UserPromptPart([draw(SAID), *draw(st.lists(st.sampled_from(PICTURES), max_size=2))])


@st.composite
def replies(draw: Any, names: Sequence[str]) -> ModelResponse:
    """A reply with calls of these *names*, after some thinking and words."""
    parts: list[Any] = []
    if draw(st.booleans()):
        parts.append(ThinkingPart(draw(SAID), signature="S", provider_name="anthropic"))
    if not names or draw(st.booleans()):
        parts.append(TextPart(draw(SAID), id=draw(st.sampled_from([None, "msg_1"]))))
    for name in names:
        objects = GIVEN.map(lambda text: {"path": "a.py", "text": text})
        given: Any = draw(st.one_of(st.none(), ARGUMENTS, objects))
        parts.append(ToolCallPart(draw(NAMES), given, name, id=draw(st.sampled_from([None, "f"]))))
    return ModelResponse(parts=parts)


@st.composite
def results(draw: Any, name: str) -> Any:
    text = draw(GIVEN)
    content: Any = draw(st.sampled_from([text, {"out": text}, [text, 1]]))
    outcome: Any = draw(st.sampled_from(["success", "failed", "retried"]))
    return ToolReturnPart("bash", content, name, metadata={"a": 1}, outcome=outcome)


@st.composite
def histories(draw: Any, most: int = 8) -> list[Any]:
    """Messages that end with a request."""
    first: list[Any] = [draw(prompts())]
    if draw(st.booleans()):
        first.insert(0, SystemPromptPart(draw(SAID)))
    messages: list[Any] = [ModelRequest(parts=first)]
    for at in range(draw(st.integers(1, most))):
        names = call_ids(draw(st.integers(0, 3)), at)
        messages.append(draw(replies(names)))
        parts = [draw(results(name)) for name in draw(st.permutations(names))]
        if not parts or draw(st.integers(0, 3)) == 0:
            parts.append(draw(prompts()))
        messages.append(ModelRequest(parts=parts))
    return messages


def problems(messages: Sequence[Any]) -> list[str]:
    """What a provider would refuse: calls and results that are not side by side."""
    found: list[str] = []
    calls: list[str] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            found += [f"{name} has no result" for name in calls]
            parts = [part for part in message.parts if isinstance(part, ToolCallPart)]
            calls = [part.tool_call_id for part in parts]
            continue
        for part in message.parts:
            if not isinstance(part, ToolReturnPart):
                continue
            if part.tool_call_id in calls:
                calls.remove(part.tool_call_id)
            else:
                found.append(f"{part.tool_call_id} has no call before it")
    return found + [f"{name} has no result" for name in calls]


def ends(messages: Sequence[Any]) -> list[int]:
    """Where the history may end when a model is asked."""
    return [
        end for end in range(1, len(messages) + 1) if isinstance(messages[end - 1], ModelRequest)
    ]


# Properties ---------------------------------------------------------------------------------------


@given(histories())
def test_what_no_stage_touches_comes_back_as_the_very_same_objects(items: list[Any]):
    assert not problems(items)
    check_untouched(PydanticCodec(), items)


@every_pipeline
@settings(max_examples=25)
@given(data=st.data())
def test_whatever_the_stages_do_calls_keep_their_results_and_the_prefix_stays(
    pipeline: Callable[[Storage], ContextPipeline], data
):
    items = data.draw(histories(12))
    forced = data.draw(st.sets(st.integers(0, len(items))))
    session = pipeline(MemoryStorage(clock=float)).session("s")

    anyio.run(check_life, PydanticCodec(), session, items, ends(items), forced, problems)


@settings(max_examples=10)
@given(items=histories())
def test_a_new_process_sends_the_same_bytes(items: list[Any], tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")

    first, second = [anyio.run(sent_items, folder, PydanticCodec(), items) for _ in range(2)]

    assert json.dumps(said(first)) == json.dumps(said(second))


def said(messages: Sequence[Any]) -> list[str]:
    """What of *messages* reaches a provider; when one was made does not."""
    parts = [part for message in messages for part in message.parts]
    names = ("content", "args", "tool_call_id", "signature", "id")
    return [repr([type(part), *(getattr(part, name, "") for name in names)]) for part in parts]


# Unknown classes and parts ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Moon:
    """A message, or a part, of a class that nobody knows."""

    moonstone: Mapping[str, Any]
    part_kind: str = "moon"


def add_part(message: Any, fields: dict[str, Any]) -> Any:
    if not isinstance(message, ModelRequest):
        return message
    parts: list[Any] = [*message.parts, Moon(fields)]
    return dataclasses.replace(message, parts=parts)


def is_known(message: Any) -> bool:
    return not isinstance(message, Moon)


def unknown_parts(message: Any) -> Sequence[Any]:
    """The message itself, if its class says nothing, else the unknown parts in it."""
    if isinstance(message, Moon):
        return [message]
    return [part for part in message.parts if isinstance(part, Moon)]


@settings(max_examples=(2 if NIGHTLY else 1) * settings().max_examples)
@given(items=with_unknown(histories(), Moon, add_part), data=st.data())
def test_unknown_messages_and_parts_stay_word_for_word_in_their_order(items: list[Any], data):
    forced = data.draw(st.sets(st.integers(1, len(items))))
    session = compacting(MemoryStorage(clock=float)).session("s")

    anyio.run(
        check_unknown, PydanticCodec(), session, items, forced, unknown_parts, problems, is_known
    )
