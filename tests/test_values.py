"""Values at any depth and of every type that the client library sends: no turn is lost to them."""

from __future__ import annotations

import asyncio
import copy
import json
import sys
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime
from enum import IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
from anthropic import AsyncAnthropic
from anthropic.types import TextBlock, ToolUseBlock
from api_histories import few
from histories import assistant, text, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st
from sdks import needs_middleware

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    InvalidHistory,
    LocalStorage,
    MemoryStorage,
    SmartTruncate,
)
from ctxpipe._values import encoding_fault
from ctxpipe.functions import load_archive
from ctxpipe.messages import (
    MAX_DEPTH,
    Message,
    as_json,
    compact_json,
    deep_copy,
    is_equal,
    rebuilt,
    strings,
)
from ctxpipe.session import Session
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.protocol import Stage
from ctxpipe.stages.reports import Outcome
from ctxpipe.summarizers import Summary

LONG = "lorem ipsum dolor " * 400


def mappings(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value}
    return value


def lists(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


def both(levels: int) -> Any:
    value: Any = "é"
    for level in range(levels):
        value = [value, level] if level % 2 else {"a": value, "b": None}
    return value


def results(levels: int) -> Any:
    """A tool result in a tool result, and so on: two levels each."""
    value: Any = [text("x")]
    for _ in range(levels // 2 - 2):
        value = [{"type": "tool_result", "tool_use_id": "t", "content": value}]
    return value


async def summarize(messages: Sequence[Message]) -> Summary:
    return Summary(f"a summary of {len(messages)} messages")


def stages(root: Path) -> list[Stage]:
    storage = LocalStorage(root)
    return [
        DirectOffload(storage, min_chars=500),
        BatchOffload(storage, gate=RatioGate(0.01), min_chars=300, inputs={"write"}),
        Compact(summarize, archive=storage),
        SmartTruncate(archive=storage, max_tokens=1_000),
    ]


def conversation(*blocks: Any) -> list[Message]:
    turns = [
        [
            assistant(tool_use(f"t{k}", "write", {"path": "a", "text": LONG})),
            user(tool_result(f"t{k}", LONG)),
        ]
        for k in range(3)
    ]
    calls = [block for block in blocks if block["type"] == "tool_use"]
    answers = [tool_result(block["id"], "ok") for block in calls]
    return [
        user("go"),
        *turns[0],
        assistant(text("look"), *blocks),
        user(*answers, text("and on")),
        *turns[1],
        *turns[2],
    ]


DEEP: dict[str, Callable[[int], list[Message]]] = {
    "mappings": lambda n: conversation(tool_use("d", "deep", {"q": mappings(n - 2)})),
    "lists": lambda n: conversation(tool_use("d", "deep", {"q": lists(n - 2)})),
    "both": lambda n: conversation(tool_use("d", "deep", {"q": both(n - 2)})),
    "an unknown block": lambda n: conversation({"type": "from the future", "q": both(n - 1)}),
    "results": lambda n: [
        user("go"),
        assistant(tool_use("d")),
        user(tool_result("d", results(n))),
        *conversation()[1:],
    ],
}


@pytest.mark.parametrize(
    ("kind_of_block", "levels"),
    [
        *(("both", levels) for levels in (100, 200, 400, 490)),
        *((name, 490) for name in DEEP if name != "both"),
    ],
)
async def test_no_depth_that_can_be_sent_makes_a_turn_fail(levels, kind_of_block, tmp_path):
    history = DEEP[kind_of_block](levels)
    before = as_json(history)
    pipeline = ContextPipeline(stages(tmp_path), budget=Budget(window=9_000))

    async with pipeline.session("s", journal=LocalStorage(tmp_path, redact=str.upper)) as session:
        for stop in (4, len(history), len(history)):
            # Built anew from turn to turn, as by whoever reads his history from a file.
            given_now = deep_copy(history[:stop])
            result = await session.run(given_now)
            assert [report.reason for report in result.reports if report.error is not None] == []
    planned = await pipeline.plan(history, session_id="p")

    assert [report.reason for report in planned.reports if report.error is not None] == []
    assert as_json(history) == before


@pytest.mark.parametrize("stage", range(4))
@pytest.mark.parametrize("kind_of_block", DEEP)
async def test_each_stage_alone_acts_on_deep_values_from_a_deep_stack(
    stage: int, kind_of_block: str, tmp_path
):
    history = DEEP[kind_of_block](450)
    pipeline = ContextPipeline([stages(tmp_path)[stage]], budget=Budget(window=4_000))

    async def below(frames: int) -> Any:
        return await (
            below(frames - 1) if frames else pipeline.run(history, session_id="s", force=True)
        )

    result = await below(300)

    assert [str(report) for report in result.reports if report.error is not None] == []
    # The last result is new, and only direct offloading looks at it; the others have old ones to
    # act on.
    assert result.reports[0].outcome is Outcome.CHANGED


async def test_an_unknown_block_is_returned_unchanged_at_any_depth():
    history = DEEP["an unknown block"](490)

    result = await ContextPipeline([]).session("s").run(history)

    assert result.messages[3] is history[3]


@pytest.mark.parametrize("levels", [550, 990, 5_000])
@pytest.mark.parametrize("kind_of_block", DEEP)
async def test_a_value_too_deep_for_every_client_is_refused_with_its_place(
    levels, kind_of_block: str
):
    history = DEEP[kind_of_block](levels)

    words = r"message \d, block \d: it holds values nested more than 500 levels deep"
    with pytest.raises(InvalidHistory, match=words):
        await ContextPipeline([]).session("s").run(history)


def new_session(storage: MemoryStorage) -> Session:
    return ContextPipeline([]).session("s", journal=storage)


async def run_pipeline(history: list[Message], _: MemoryStorage) -> None:
    await ContextPipeline([]).run(history, session_id="s")


async def run_session(history: list[Message], storage: MemoryStorage) -> None:
    await new_session(storage).run(history)


async def create(history: list[Message], storage: MemoryStorage) -> None:
    # No server listens there: a request that is sent fails with another error.
    client = AsyncAnthropic(api_key="k", base_url="http://127.0.0.1:1", max_retries=0)
    await new_session(storage).create(client, messages=history, model="m", max_tokens=9)


async def append(history: list[Message], storage: MemoryStorage) -> None:
    async with new_session(storage) as session:
        session.append(*history)


async def save(history: list[Message], storage: MemoryStorage) -> None:
    await storage.save("s", "compact", history)


@pytest.mark.parametrize("kind_of_block", DEEP)
@pytest.mark.parametrize("way_in", [run_pipeline, run_session, create, append, save])
async def test_a_value_too_deep_is_refused_at_every_way_in_and_not_written(
    way_in: Callable[[list[Message], MemoryStorage], Awaitable[None]], kind_of_block: str
):
    storage = MemoryStorage()

    with pytest.raises(InvalidHistory, match="nested more than 500 levels deep"):
        await way_in(DEEP[kind_of_block](900), storage)

    assert await storage.entries("s") == []
    assert await storage.records("s") == []


@pytest.mark.parametrize("value", [float("nan"), object(), {(1, 2): 3}])
async def test_a_session_that_refuses_to_append_a_value_goes_on_without_it(value: Any):
    storage = MemoryStorage()
    async with new_session(storage) as session:
        session.append(user("go"))

        with pytest.raises(InvalidHistory, match="message 0, block 0: it holds"):
            session.append(assistant(tool_use("a", "x", {"q": value})))

    assert await new_session(storage).history() == [user("go")]


def test_as_many_levels_as_allowed_can_be_sent_and_one_more_cannot():
    assert not encoding_fault(mappings(MAX_DEPTH))
    assert encoding_fault(mappings(MAX_DEPTH + 1)) == "values nested more than 500 levels deep"


async def test_a_value_that_contains_itself_is_refused():
    value: dict[str, Any] = {}
    value["self"] = [value, value]

    with pytest.raises(InvalidHistory, match="nested more than"):
        await ContextPipeline([]).run(
            [user("go"), assistant(tool_use("a", "x", value))], session_id="s"
        )


async def test_a_model_of_the_sdk_that_cannot_be_sent_is_refused():
    made = ToolUseBlock.model_construct(
        type="tool_use", id="a", name="x", input={"q": mappings(500)}
    )
    history = [user("go"), cast("Message", {"role": "assistant", "content": [made]})]

    with pytest.raises(
        InvalidHistory, match="message 1, block 0: it holds a ToolUseBlock that cannot be sent"
    ):
        await ContextPipeline([]).run(history, session_id="s")


# The same text as the encoder's own ---------------------------------------------------------------

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
)


@few
@given(JSON, st.sampled_from([None, 2]), st.booleans())
def test_deep_values_are_written_as_the_encoder_writes_shallow_ones(
    value, indent: int | None, ensure_ascii: bool
):
    wrapped = value
    for _ in range(400):
        wrapped = [wrapped]

    separators = None if indent else (",", ":")
    inner = json.dumps([[value]], indent=indent, ensure_ascii=ensure_ascii, separators=separators)
    outer = asyncio.run(
        _deep_in_the_stack(lambda: as_json(wrapped, indent=indent, ensure_ascii=ensure_ascii))
    )
    assert "".join(outer.split()) == "[" * 398 + "".join(inner.split()) + "]" * 398
    assert json.loads(as_json(value, indent=indent, ensure_ascii=ensure_ascii)) == value


async def _deep_in_the_stack(act: Callable[[], str], frames: int = 300) -> str:
    return await _deep_in_the_stack(act, frames - 1) if frames else act()


def test_the_lines_of_deep_values_are_indented_by_their_level():
    value = both(490)

    lines = as_json(value, indent=1).splitlines()

    assert max(len(line) - len(line.lstrip(" ")) for line in lines) == 490
    assert json.loads(as_json(both(5), indent=1)) == both(5)
    assert as_json(both(5), indent=1) == json.dumps(both(5), indent=1)


@given(JSON)
def test_a_copy_and_the_strings_of_a_value_do_not_depend_on_how_it_is_read(value):
    same = rebuilt(value, lambda item: item)

    assert same == value
    assert is_equal(deep_copy(value), value)
    assert list(strings(value)) == list(strings(same))


def test_deep_values_are_compared_by_their_json():
    assert is_equal(both(490), both(490))
    assert not is_equal(
        both(490), {**both(490), "c": 1} if isinstance(both(490), dict) else [*both(490), 1]
    )


# Types that the client sends ----------------------------------------------------------------------


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


SENT: dict[str, tuple[Any, Any]] = {
    "a time": (datetime(2026, 1, 1, 12, 30, tzinfo=UTC), "2026-01-01T12:30:00+00:00"),
    "a day": (date(2026, 1, 1), "2026-01-01"),
    "a set": ({"x"}, ["x"]),
    "a frozen set": (frozenset({"x"}), ["x"]),
    "a tuple": (("x", date(2026, 1, 1)), ["x", "2026-01-01"]),
    "a deque": (deque(["x"]), ["x"]),
    "a range": (range(2), [0, 1]),
    "the keys of a mapping": ({"x": 1}.keys(), ["x"]),
    "a mapping that is no dict": (MappingProxyType({"x": date(2026, 1, 1)}), {"x": "2026-01-01"}),
    "an ordered mapping": (OrderedDict(x=1), {"x": 1}),
    "a named text": (Colour.RED, "red"),
    "a named number": (Level.LOW, 1),
    "a model": (TextBlock(type="text", text="hi"), {"type": "text", "text": "hi"}),
    "a number as key": (
        {1: "x", None: "y", 2.5: "z", False: "w"},
        {"1": "x", "null": "y", "2.5": "z", "false": "w"},
    ),
}


@needs_middleware
@pytest.mark.parametrize("name", SENT)
def test_a_value_is_encoded_as_the_client_encodes_it(name: str):
    from anthropic._utils._json import openapi_dumps

    value, _ = SENT[name]

    assert compact_json({"v": value}) == openapi_dumps({"v": value}).decode()


@pytest.mark.parametrize("name", SENT)
def test_a_value_that_json_does_not_know_is_encoded(name: str):
    value, expected = SENT[name]

    assert json.loads(compact_json(value)) == expected


@pytest.mark.parametrize(
    ("where", "name"),
    [
        *(("an input", name) for name in SENT),
        ("an unknown block", "a time"),
        ("a result", "a time"),
        ("a result", "a set"),
    ],
)
async def test_no_stage_fails_for_what_the_client_sends(name, where, tmp_path):
    value = SENT[name][0]
    made: dict[str, Any] = {
        "an input": tool_use("d", "write", {"when": value, "text": LONG}),
        "an unknown block": {"type": "from the future", "when": [value]},
        "a result": tool_use("d"),
    }[where]
    history = conversation(made)
    if where == "a result":
        content = [text(LONG), {"type": "from the future", "when": value}]
        history[4] = user(tool_result("d", content))
    pipeline = ContextPipeline(stages(tmp_path), budget=Budget(window=9_000))
    storage = LocalStorage(tmp_path)

    async with pipeline.session("s", journal=storage) as session:
        for stop in (4, 6, len(history)):
            result = await session.run(history[:stop])
            assert [report.reason for report in result.reports if report.error is not None] == []
    async with pipeline.session("s", journal=storage) as again:
        result = await again.run([*history, assistant("ok"), user("more")])
        assert [report.reason for report in result.reports if report.error is not None] == []


async def test_an_archive_holds_what_was_sent(tmp_path):
    storage = LocalStorage(tmp_path, redact=lambda words: words)
    values = {name: value for name, (value, _) in SENT.items()}
    history = conversation(tool_use("d", "x", copy.copy(values)))
    pipeline = ContextPipeline([Compact(summarize, archive=storage)], budget=Budget(window=5_000))

    await pipeline.run(history, session_id="s", force=True)

    [record] = [r for r in await storage.records("s") if r.endswith(".json")]
    archived = await load_archive(record)
    assert cast("Any", archived[3]["content"])[1]["input"] == {
        name: expected for name, (_, expected) in SENT.items()
    }


async def test_the_path_of_a_picture_is_left_for_the_client_to_read(tmp_path):
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": Path("a.png")},
    }
    history = [user("look", cast("Any", picture)), *conversation()[1:]]

    result = await ContextPipeline(stages(tmp_path), budget=Budget(window=90_000)).run(
        history, session_id="s"
    )

    assert result.repaired == ()
    assert cast("Any", result.messages[0]["content"])[1] == picture


async def test_the_deepest_allowed_value_can_be_read_again_from_a_deep_stack():
    written = as_json({"turns": [{"messages": [assistant(tool_use("a", "x", mappings(450)))]}]})
    # Python 3.11 counts each frame twice while coverage is measured.
    frames = 300 if sys.gettrace() is None else 50

    async def read(frames: int) -> Any:
        return await read(frames - 1) if frames else json.loads(written)

    assert as_json(await read(frames)) == written


async def test_a_journal_with_the_deepest_input_is_continued_by_a_new_process():
    storage, history = MemoryStorage(), DEEP["mappings"](490)
    await ContextPipeline([]).session("s", journal=storage).run(history)
    resumed = ContextPipeline([]).session("s", journal=storage)

    result = await resumed.run(history)

    assert result.notices == ()
    assert await resumed.history() == history
