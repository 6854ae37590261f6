"""Wrong set-ups are refused where they are made, in words that name the setting and the way out."""

from __future__ import annotations

import functools
import re
import tempfile
import time
import types
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import anthropic
import pytest
from anthropic.types import Message as Reply
from anthropic.types import TextBlock, Usage
from histories import conversation, user
from in_memory import messages_api
from models import MODEL

from ctxpipe import (
    BatchOffload,
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    InvalidHistory,
    LocalStorage,
    MemoryStorage,
    SettingsError,
    Skip,
    SmartTruncate,
    TrimReadBacks,
    Turn,
    offload_tools,
    wire,
)
from ctxpipe.adapters.anthropic import ctxpipe_middleware
from ctxpipe.folding.folder import Folder
from ctxpipe.messages.shape import SEE_DOCS
from ctxpipe.placeholders.placeholders import Preview
from ctxpipe.presets import chat, coding_agent
from ctxpipe.providers.prices import Prices
from ctxpipe.session.session import conversation_of
from ctxpipe.stages.compact.stage import Breaker, Evidence, Restore
from ctxpipe.stages.offload.gates import RatioGate, RentOrBuyGate
from ctxpipe.stages.reports import Outcome
from ctxpipe.storage.files import LocalFiles
from ctxpipe.summarizers import (
    AgentModel,
    AgentSummarizer,
    AnthropicSummarizer,
    ExtractiveSummarizer,
    PromptSummarizer,
    Retry,
    Summary,
)
from ctxpipe.testing import MessagesServer
from ctxpipe.tokens import TokenCounter

HISTORY = conversation(user("go"))
STORAGE = LocalStorage(tempfile.mkdtemp())


async def skip(turn: Turn) -> Skip:
    return Skip(f"{len(turn.messages)} messages")


# Stages -------------------------------------------------------------------------------------------


def sync_change(turn: Turn) -> Change:
    return Change(list(turn.messages))


def sync_skip(_turn: Turn) -> Skip:
    return Skip("no")


def sync_generator(turn: Turn) -> Any:
    yield turn


async def async_generator(turn: Turn) -> Any:
    yield turn


def sync_summary(messages: Any) -> Summary:
    return Summary(f"{len(messages)} messages")


class SyncStage:
    def __call__(self, turn: Turn) -> Change:
        return Change(list(turn.messages))


@pytest.mark.parametrize(
    ("stage", "words"),
    [
        (DirectOffload, r"the class DirectOffload; give an object of it: DirectOffload\(…\)"),
        (SyncStage, "the class SyncStage; give an object of it"),
        (sync_change, "the stage sync_change is not async; write `async def`"),
        (sync_skip, "the stage sync_skip is not async"),
        (sync_generator, "the stage sync_generator is not async"),
        (async_generator, "the stage async_generator is not async"),
        (functools.partial(sync_change), "is not async"),
        (SyncStage(), "the stage SyncStage is not async"),
        (RatioGate(0.2), "RatioGate cannot be called with one argument"),
        (lambda: None, "cannot be called with one argument"),
        (None, "None is not callable"),
        ("DirectOffload", "'DirectOffload' is not callable"),
        ([skip], "is not callable; add its stages one by one"),
        (ContextPipeline([skip]), "is not callable; add its stages one by one"),
        (Budget(), "is not callable"),
        (LocalStorage(tempfile.mkdtemp()), "is not callable"),
    ],
)
def test_what_can_be_no_stage_is_refused(stage, words):
    with pytest.raises(SettingsError, match=words):
        ContextPipeline([stage])
    with pytest.raises(SettingsError, match=words):
        ContextPipeline().use(stage)


def traced(stage: Callable[[Turn], Awaitable[Skip]]) -> Callable[[Turn], Awaitable[Skip]]:
    @functools.wraps(stage)
    def call(turn: Turn) -> Awaitable[Skip]:
        return stage(turn)

    return call


def forwarded(stage: Callable[[Turn], Awaitable[Skip]]) -> Callable[[Turn], Awaitable[Skip]]:
    def call(turn: Turn) -> Awaitable[Skip]:
        return stage(turn)

    return call


async def skip_with(words: str, turn: Turn) -> Skip:
    return Skip(f"{words} {turn.session_id}")


class AsyncStage:
    async def __call__(self, turn: Turn) -> Skip:
        return await skip(turn)

    async def method(self, turn: Turn) -> Skip:
        return await skip(turn)


@cast("Any", types.coroutine)
def old_style(turn: Turn) -> Any:
    yield from cast("Any", skip(turn).__await__())


@pytest.mark.parametrize(
    "stage",
    [
        skip,
        functools.partial(skip_with, "no"),
        traced(skip),
        forwarded(skip),
        lambda turn: skip_with("no", turn),
        AsyncStage(),
        AsyncStage().method,
        old_style,
    ],
)
async def test_whatever_may_answer_with_something_to_await_is_a_stage(stage):
    result = await ContextPipeline([stage]).run(HISTORY, session_id="s")

    assert result.reports[0].outcome is Outcome.SKIPPED


# Settings, by a table over all fields -------------------------------------------------------------


async def ask(prompt: str) -> str:
    return prompt


async def answer_late(*_: object) -> bool:
    return True


PIPELINE = ContextPipeline([skip])
CONVERSATION = [{"role": "user", "content": "a secret of the user " * 50}] * 50

# What is given in place of each setting: none of it can be meant.
NUMBERS = ["5", b"5", True, None, [], {}, 1j, float("nan"), float("inf"), -1, CONVERSATION]
SIZES = [*NUMBERS, 1.5]
FLAGS = ["yes", 0, 1, None, [], CONVERSATION]
TEXTS = [5, b"s", None, ["s"], CONVERSATION]
CALLED = ["f", 5, [], CONVERSATION]
PLAIN = [*CALLED, answer_late]
TOOLS = ["read_file", ["read_file"], {5: "path"}, {"read_file": 5}]


def optional(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


WRONG: list[tuple[Callable[..., object], dict[str, Any], dict[str, list[Any]]]] = [
    (Preview, {}, {"head": SIZES, "tail": SIZES}),
    (RatioGate, {}, {"ratio": [value for value in NUMBERS if value != -1]}),
    (
        RentOrBuyGate,
        {},
        {
            "prices": ["claude", {}, None, Prices, CONVERSATION],
            **dict.fromkeys(("alpha", "min_tokens", "min_calls", "free_calls"), NUMBERS),
        },
    ),
    (
        Prices,
        {"input": 1.0, "write": 1.0, "write_1h": 1.0, "read": 1.0, "output": 1.0},
        {
            **dict.fromkeys(
                ("input", "write", "write_1h", "read", "output", "ttl_seconds"), NUMBERS
            ),
            "cliffs": [5, "x", None, [5], (5,)],
        },
    ),
    (
        Budget,
        {},
        {
            "window": optional(SIZES),
            "trigger": optional(NUMBERS),
            "target": optional(NUMBERS),
            "reserve_output": optional(SIZES),
        },
    ),
    (
        Retry,
        {},
        {
            "max_retries": SIZES,
            "attempt_seconds": [*NUMBERS, 0],
            "total_seconds": [*NUMBERS, 0],
            "sleep": [*CALLED, time.sleep, lambda _seconds: None],
            "clock": PLAIN,
        },
    ),
    (
        LocalStorage,
        {"root": "."},
        {
            "root": ["", 5, None, ["."], CONVERSATION],
            "fsync": FLAGS,
            "redact": PLAIN,
            "on_conflict": ["rename", 5, None],
            "clock": PLAIN,
            "reference": TEXTS,
            "tombstone_days": [*NUMBERS, 0],
            "must_be_writable": FLAGS,
        },
    ),
    (LocalFiles, {}, {"root": ["", 5, None, ["."]], "deny": PLAIN}),
    (
        Restore,
        {"work_dir": "."},
        {
            "work_dir": ["", 5, ["."]],
            "reading_tools": [*TOOLS, None],
            "shell": FLAGS,
            "max_files": SIZES,
            "max_tokens_per_file": SIZES,
            "max_tokens_total": SIZES,
            "deny": PLAIN,
            "redact": PLAIN,
        },
    ),
    (Restore, {}, {"files": [".", 5, LocalFiles, len]}),
    (
        DirectOffload,
        {"storage": STORAGE},
        {
            "storage": [".ctxpipe", None, 5, LocalStorage, CONVERSATION],
            "min_chars": SIZES,
            "preview": [400, (400, 200), Preview, CONVERSATION],
            "per_tool": [[], None, {"bash": "x"}, {"bash": -1}, {"bash": 1.5}],
            "pin": PLAIN,
        },
    ),
    (
        TrimReadBacks,
        {"storage": STORAGE},
        {
            "storage": [".ctxpipe", None, 5, LocalStorage, CONVERSATION],
            "max_chars": [*SIZES, 0],
        },
    ),
    (
        BatchOffload,
        {"storage": STORAGE},
        {
            "storage": [".ctxpipe", None, 5, LocalStorage, CONVERSATION],
            "gate": [0.2, None, RatioGate, CONVERSATION],
            "min_chars": SIZES,
            "keep_recent": SIZES,
            "keep_read_backs": FLAGS,
            "preview": [400, (400, 200), Preview],
            "per_tool": [[], None, {"bash": "x"}],
            "pin": PLAIN,
            "inputs": ["write_file", 5, None, [5]],
        },
    ),
    (
        Compact,
        {"archive": STORAGE},
        {
            "summarize": [
                "claude",
                5,
                ExtractiveSummarizer,
                CONVERSATION,
                sync_summary,
            ],
            "archive": [".ctxpipe", 5, None, LocalStorage],
            "require_archive": FLAGS,
            "restore": [".", {}, Restore, CONVERSATION],
            "evidence": [2000, {}, None, Evidence],
            "breaker": [300.0, {}, None, Breaker],
            "background": FLAGS,
        },
    ),
    (Evidence, {}, {"tokens": SIZES, "pin": PLAIN}),
    (
        Breaker,
        {},
        {"retry": [3, {}, None, Retry], "cooldown_seconds": NUMBERS, "clock": PLAIN},
    ),
    (
        SmartTruncate,
        {},
        {
            "archive": [".ctxpipe", 5, LocalStorage],
            "max_tokens": SIZES,
            "middle_start": NUMBERS,
            "middle_end": NUMBERS,
            "reading_tools": [*TOOLS, None],
            "shell": FLAGS,
            "require_archive": FLAGS,
            "pin": PLAIN,
        },
    ),
    (
        AnthropicSummarizer,
        {},
        {
            "client": ["key", 5, anthropic.Anthropic(api_key="k"), anthropic.AsyncAnthropic],
            "model": optional(TEXTS),
            "mode": ["fast", 5, None],
            "max_words": [*SIZES, 0],
            "focus": TEXTS,
            "system": [5, True],
            "tools": ["bash", 5, None],
            "request_options": [[], "x", None],
            "window": [*SIZES, 0],
            "counter": [5, [], TokenCounter, answer_late],
            "max_tokens": [*optional(SIZES), 0],
        },
    ),
    (
        AgentSummarizer,
        {},
        {
            "model": optional(TEXTS),
            "max_words": [*SIZES, 0],
            "focus": TEXTS,
            "window": [*optional(SIZES), 0],
            "counter": [5, [], TokenCounter, answer_late],
            "max_tokens": [*optional(SIZES), 0],
            "default_window": [*SIZES, 0],
            "agent_model": ["client", 5, AgentModel],
        },
    ),
    (
        PromptSummarizer,
        {"ask": ask},
        {
            "ask": ["claude", 5, None],
            "model": optional(TEXTS),
            "max_words": [*SIZES, 0],
            "focus": TEXTS,
            "window": [*SIZES, 0],
            "counter": [5, [], TokenCounter, answer_late],
        },
    ),
    (ExtractiveSummarizer, {}, {"max_words": [*SIZES, 0], "brief": FLAGS}),
    (
        Folder,
        {},
        {
            "max_tokens": optional(SIZES),
            "merge_functions": FLAGS,
            "max_line_span": SIZES,
            "counter": [5, [], TokenCounter, answer_late],
        },
    ),
    (
        ContextPipeline,
        {},
        {
            "stages": [None, 5, "stages", skip, {"a": skip}, DirectOffload(STORAGE), DirectOffload],
            "budget": [100_000, 0.9, {"window": 5}, "200k", Budget, CONVERSATION],
            "counter": [5, [], TokenCounter, answer_late],
            "on_report": PLAIN,
            "veto": PLAIN,
            "on_error": ["ignore", None, 5],
            "thinking": ["forget", None, 5],
            "prices": [MODEL, {}, Prices],
            "max_sessions": [*SIZES, 0],
        },
    ),
    (
        PIPELINE.session,
        {"session_id": "s"},
        {
            "session_id": [None, 5, b"s", "", "s" * 1_001, ["s"], CONVERSATION],
            "journal": [".ctxpipe", 5, LocalStorage, CONVERSATION],
            "verify": FLAGS,
            "cache_seconds": NUMBERS,
            "clock": PLAIN,
        },
    ),
    (
        TokenCounter,
        {},
        {"encoding": [5, None, b"x", "no such", str, answer_late], "memo_bytes": SIZES},
    ),
    (
        offload_tools,
        {"storage": STORAGE},
        {
            "storage": [".ctxpipe", 5, None, LocalStorage],
            "session_id": ["", 5],
            "max_chars": [*SIZES, 0],
        },
    ),
    (
        ctxpipe_middleware,
        {"pipeline": PIPELINE, "session_id": "s"},
        {
            "pipeline": [None, [skip], ContextPipeline, "p"],
            "session_id": ["", 5, answer_late],
            "journal": [".ctxpipe", 5, LocalStorage],
            "cache_breakpoints": [*optional(SIZES), 5],
            "threads": ["refuse", 5, None],
        },
    ),
    (
        coding_agent,
        {"storage": STORAGE, "work_dir": "."},
        {"storage": [".ctxpipe"], "prices": ["x"], "work_dir": [5]},
    ),
    (chat, {"storage": STORAGE}, {"storage": [".ctxpipe"], "prices": ["x"], "summarize": ["x"]}),
]
CASES = [
    pytest.param(make, sound, name, values, id=f"{getattr(make, '__name__', make)}-{name}")
    for make, sound, wrong in WRONG
    for name, values in wrong.items()
]


@pytest.mark.parametrize(("make", "sound", "name", "values"), CASES)
def test_a_setting_of_the_wrong_type_is_refused_by_name(
    make: Callable[..., object], sound: dict[str, Any], name: str, values: Sequence[Any]
):
    for value in values:
        try:
            with pytest.raises(SettingsError) as refused:
                make(**{**sound, name: value})
        except (TypeError, pytest.fail.Exception) as error:
            # a cross-check of two settings must not come first
            pytest.fail(f"{name}={value!r}: {error!r}")

        told = str(refused.value)
        assert name in told, value
        assert len(told) < 400
        assert "\n" not in told


@pytest.mark.parametrize(
    "made",
    sorted({make for make, *_ in WRONG if isinstance(make, type)}, key=str),
    ids=lambda made: made.__name__,
)
def test_the_table_holds_every_field(made):
    tested = {name for make, _, wrong in WRONG if make is made for name in wrong}
    settings = (
        {field.name for field in fields(made) if field.init}
        if hasattr(made, "__dataclass_fields__")
        else set()
    )

    assert settings <= tested


def test_a_client_in_place_of_a_summarizer_is_refused_with_the_class_that_takes_it():
    client: Any = anthropic.AsyncAnthropic(api_key="k")

    with pytest.raises(SettingsError, match=r"a client; give AnthropicSummarizer\(client\)"):
        Compact(client, archive=MemoryStorage())


@pytest.mark.parametrize("session_id", [None, 5, b"s", "", "s" * 1_001])
async def test_a_wrong_session_id_is_refused_by_every_door(session_id):
    for attempt in (ContextPipeline().run, ContextPipeline().plan):
        with pytest.raises(SettingsError, match="session_id is "):
            await attempt(HISTORY, session_id=session_id)
    with pytest.raises(SettingsError, match="session_id is "):
        ContextPipeline().observe({"input_tokens": 5}, HISTORY, session_id=session_id)


# Clients ------------------------------------------------------------------------------------------


def sync_client(server: MessagesServer) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key="test", max_retries=0)


CLIENTS: list[tuple[Callable[[MessagesServer], Any], str]] = [
    (
        sync_client,
        "client is Anthropic, which would block the event loop; give anthropic.AsyncAnthropic",
    ),
    (lambda server: sync_client(server).beta, "client is Beta, which would block the event loop"),
    (lambda server: sync_client(server).messages, "client is Messages, the messages of a client"),
    (
        lambda _: anthropic.AsyncAnthropic(api_key="k").messages,
        "client is AsyncMessages, the messages of a client",
    ),
    (lambda _: anthropic.AsyncAnthropic, "client is the class AsyncAnthropic"),
    (lambda _: None, "client is NoneType, which has no messages.create"),
    (lambda _: "sk-key", "client is str, which has no messages.create"),
    (
        lambda _: SimpleNamespace(chat=SimpleNamespace(completions=None)),
        "which has no messages.create",
    ),
]


@pytest.mark.parametrize(("client", "words"), CLIENTS)
async def test_a_client_that_cannot_be_awaited_is_refused_before_anything_is_sent(
    client: Callable[[MessagesServer], Any], words: str
):
    session = ContextPipeline([skip]).session("s")
    async with MessagesServer(["never sent"]) as server:
        with pytest.raises(SettingsError, match=words):
            await session.create(client(server), messages=HISTORY, model="m", max_tokens=5)
        with pytest.raises(SettingsError, match=words):
            async with session.stream(client(server), messages=HISTORY, model="m", max_tokens=5):
                pass

    assert server.calls == 0


async def test_the_beta_of_a_client_takes_betas():
    session = ContextPipeline([skip]).session("s")
    async with messages_api(MessagesServer(["Hello."])) as (_, client):
        beta = cast("Any", client.beta)
        reply = await session.create(
            beta,
            messages=HISTORY,
            model=MODEL,
            max_tokens=50,
            betas=["context-1m-2025-08-07"],
        )

    assert cast("Any", reply.content[0]).text == "Hello."


# Histories ----------------------------------------------------------------------------------------

CALL = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}


class ModelRequest:
    """As pydantic-ai's messages are: parts, and no role."""

    parts = ("go",)


class AIMessage:
    """As LangChain's messages are."""

    type = "ai"
    content = "go"
    tool_calls = ()


ANOTHER_FORM = "has the form of another API"
REPLY = Reply.model_construct(stop_reason="end_turn", content=[TextBlock(type="text", text="Hi.")])


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "tool", "tool_call_id": "call_1", "content": "42"}, "has the role 'tool'"),
        ({"role": "function", "name": "ls", "content": "42"}, "has the role 'function'"),
        ({"role": "developer", "content": "Be brief."}, "has the role 'developer'"),
        ({"role": "assistant", "content": None, "tool_calls": [CALL]}, ANOTHER_FORM),
        ({"role": "assistant", "content": "Look:", "tool_calls": [CALL]}, ANOTHER_FORM),
        ({"role": "assistant", "content": None, "function_call": {"name": "ls"}}, ANOTHER_FORM),
        ({"type": "function_call", "call_id": "c", "name": "ls", "arguments": "{}"}, "has no role"),
        ({"type": "function_call_output", "call_id": "c", "output": "42"}, "has no role"),
        ({"type": "reasoning", "summary": []}, "has no role"),
        ({"role": "user", "content": [{"type": "input_text", "text": "hi"}]}, ANOTHER_FORM),
        ({"role": "assistant", "content": [{"type": "output_text", "text": "hi"}]}, ANOTHER_FORM),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, ANOTHER_FORM),
        ({"role": "user", "parts": [{"text": "hi"}]}, "has no content"),
        ({"role": "model", "parts": [{"text": "hi"}]}, "has no content"),
        ({"type": "human", "data": {"content": "hi"}}, "has no role"),
        ({"lc": 1, "type": "constructor", "kwargs": {}}, "has no role"),
        ({"role": "assistant", "content": [{"toolUse": {"name": "ls"}}]}, ANOTHER_FORM),
        (ModelRequest(), "is ModelRequest, not a mapping with role and content"),
        (AIMessage(), "is AIMessage, not a mapping with role and content"),
        (
            REPLY,
            (
                "is Message, not a mapping with role and content; append "
                '{"role": "assistant", "content": reply'
            ),
        ),
        ("go", "is str, not a mapping"),
        ({"role": "x" * 5_000, "content": "hi"}, "has the role 'xxx"),
    ],
)
async def test_a_message_of_another_api_is_refused_with_where_to_read_on(message, words):
    for attempt in (ContextPipeline().run, ContextPipeline().plan):
        with pytest.raises(InvalidHistory) as refused:
            await attempt([*HISTORY, message], session_id="s")
        assert words in str(refused.value)
        assert message is REPLY or SEE_DOCS in str(refused.value)
        assert len(str(refused.value)) < 300


async def test_the_call_that_the_refusal_of_another_api_names_shapes_these_messages():
    function = {"name": "bash", "arguments": "{}"}
    calls = [{"id": "c1", "type": "function", "function": function}]
    messages: list[Any] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "a line of a log\n" * 500},
    ]
    pipeline = ContextPipeline([DirectOffload(MemoryStorage())])
    with pytest.raises(InvalidHistory) as refused:
        await pipeline.run(messages, session_id="s")
    call = re.search(r"use (Adapter.*) of ctxpipe\.wire", str(refused.value))
    assert call is not None

    names = {**vars(wire), "pipeline": pipeline, "messages": messages}
    exchange = await eval(call[1], names)  # noqa: S307  it is ctxpipe's own text

    assert "offloaded to file" in exchange.items[2]["content"]


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ("go", "not str; give [{"),
        (None, "not NoneType; give [{"),
        (tuple(HISTORY), r"not tuple; give list(…) of it"),
        (iter(HISTORY), "give list(…) of it"),
        ({"role": "user", "content": "go"}, "not dict; give a list of such messages"),
        ({"model": "m", "messages": HISTORY}, "not dict; give its messages"),
        (5, "a history is a list of messages, not int"),
    ],
)
async def test_what_is_no_list_is_refused_with_the_way_out(history, words):
    for attempt in (ContextPipeline().run, ContextPipeline().plan):
        with pytest.raises(InvalidHistory) as refused:
            await attempt(history, session_id="s")
        assert words in str(refused.value)


async def test_a_result_in_place_of_the_history_is_refused_with_the_way_out():
    result = await ContextPipeline().run(HISTORY, session_id="s")

    with pytest.raises(InvalidHistory, match=r"not Result; give the history, or result\.messages"):
        await ContextPipeline().session("s").run(cast("Any", result))


# Usages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "usage", [None, 5, "usage", {}, [], {"prompt_tokens": 5}, {"usage": None}, {"usage": {}}]
)
async def test_what_holds_no_usage_is_refused(usage):
    pipeline = ContextPipeline([skip])
    session = pipeline.session("s")
    await session.run(HISTORY)

    with pytest.raises(SettingsError, match=r"without input_tokens; give the usage of a reply"):
        session.observe(usage)
    with pytest.raises(SettingsError, match=r"without input_tokens; give the usage of a reply"):
        pipeline.observe(usage, HISTORY, session_id="s")


@pytest.mark.parametrize(
    "usage",
    [
        {"input_tokens": 900, "output_tokens": 1},
        {"usage": {"input_tokens": 900, "output_tokens": 1}},
        Usage(input_tokens=900, output_tokens=1),
        Reply.model_construct(
            model=None, content=[], usage=Usage(input_tokens=900, output_tokens=1)
        ),
    ],
)
async def test_a_usage_and_the_reply_that_holds_it_teach_the_same(usage):
    session = ContextPipeline([skip]).session("s")
    await session.run(conversation(user("word " * 600)))

    session.observe(usage)

    assert conversation_of(session).memory.state.ledger.factor == pytest.approx(1.5, abs=0.01)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"client": anthropic.Anthropic(api_key="k")}, "client is Anthropic, which would block"),
        ({"client": anthropic.AsyncAnthropic}, "client is the class AsyncAnthropic"),
        ({"client": "claude"}, "client is str"),
        ({"tools": "bash"}, "tools is 'bash'; give the list"),
        ({"tools": {"name": "bash"}}, "give the list of tools"),
        ({"tools": offload_tools(MemoryStorage())}, "of a Tool of ctxpipe give its definition"),
        ({"request": "claude"}, "request is 'claude'"),
        ({"force": "no"}, "force is 'no'; give True or False"),
    ],
)
async def test_arguments_of_a_turn_that_make_no_sense_are_refused_by_name(
    wrong: dict[str, Any], words
):
    with pytest.raises(SettingsError, match=words):
        await ContextPipeline().session("s").run(HISTORY, **wrong)
