"""`Session.create` and `Session.stream`: the loop's body.

With the real SDK against the loopback Messages API.
"""

from __future__ import annotations

import copy
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anthropic
import anyio
import pytest
from histories import MARK, conversation, step, tool_result, user
from in_memory import messages_api
from sdks import NOT_GIVEN, needs_automatic_caching

from ctxpipe import (
    Budget,
    Change,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Skip,
    SmartTruncate,
    Turn,
)
from ctxpipe.adapters.http_client import library_of
from ctxpipe.errors import SettingsError
from ctxpipe.messages import Message, cache_marks, rewrite, tool_results
from ctxpipe.providers.refusals import Refusal
from ctxpipe.session import Session
from ctxpipe.testing import (
    Cut,
    Failure,
    Hang,
    MessagesServer,
    Model,
    Received,
    Reply,
    RequestBody,
    Script,
    answer_with,
    overloaded,
    prompt_too_long,
    rate_limited,
    server_error,
    thinking,
    tool_use,
)

if TYPE_CHECKING:
    import httpx2 as http
else:
    http = library_of(anthropic)

LONG = "a long line of output\n" * 100
TOOLS: list[dict[str, Any]] = [
    {
        "name": "look",
        "description": "Looks. " * 200,
        "input_schema": {"type": "object", "properties": {}},
    }
]

Ask: TypeAlias = Callable[..., Awaitable[Any]]


@asynccontextmanager
async def talk(
    script: Script, *, model: Model | None = None, **client: Any
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    """A server that follows *script*, and a client of it that tries once."""
    async with messages_api(MessagesServer(script, model=model or Model()), **client) as talking:
        yield talking


# The ways to ask; each gives the message that was answered.


async def created(
    session: Session, client: anthropic.AsyncAnthropic, messages: list[Message], **options: Any
) -> Any:
    return await session.create(client, messages=messages, model="m", max_tokens=99, **options)


async def streamed(
    session: Session, client: anthropic.AsyncAnthropic, messages: list[Message], **options: Any
) -> Any:
    stream: Any = await created(session, client, messages, stream=True, **options)
    events = [event async for event in stream]
    assert [events[0].type, events[-1].type] == ["message_start", "message_stop"]
    return events[0].message


async def helped(
    session: Session, client: anthropic.AsyncAnthropic, messages: list[Message], **options: Any
) -> Any:
    async with session.stream(
        client, messages=messages, model="m", max_tokens=99, **options
    ) as stream:
        return await stream.get_final_message()


every_way = pytest.mark.parametrize("ask", [created, streamed, helped])


def loop(turns: int) -> list[Message]:
    """A conversation of *turns* calls, with their long results."""
    return conversation(user("go"), *(step(f"t{i}", result=LONG) for i in range(turns)))


def truncating(folder: Path, window: int = 500_000) -> ContextPipeline:
    """A pipeline that believes in a larger window than the model has."""
    return ContextPipeline(
        [SmartTruncate(LocalStorage(folder), max_tokens=1500)], budget=Budget(window=window)
    )


def messages_of(received: Received) -> list[Any]:
    return cast("list[Any]", received.body["messages"])


# One call -----------------------------------------------------------------------------------------


@every_way
async def test_create_sends_the_context_and_returns_the_reply(ask: Ask, tmp_path):
    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path), min_chars=500)])
    history = loop(1)
    before = copy.deepcopy(history)

    async with talk(["Hello."]) as (server, client):
        session = pipeline.session("s")
        reply = await ask(session, client, history, system="Be brief.", stop_sequences=["halt"])
        context = (await session.run(history)).messages

    [request] = server.requests
    assert (reply.role, reply.model) == ("assistant", "m")
    assert messages_of(request) == json.loads(json.dumps(context)) != history
    assert (request.body["system"], cast("Any", request.body)["stop_sequences"]) == (
        "Be brief.",
        ["halt"],
    )
    assert history == before


@every_way
async def test_below_all_thresholds_the_request_equals_one_without_a_session(ask: Ask, tmp_path):
    history = loop(1)

    async with talk(["one", "two"]) as (server, client):
        await ask(truncating(tmp_path).session("s"), client, history)
        options: Any = {"stream": True} if ask is not created else {}
        plain: Any = await client.messages.create(
            model="m", max_tokens=99, messages=cast("Any", history), **options
        )
        _ = [event async for event in plain] if options else None

    ours, theirs = server.requests
    assert json.dumps(ours.body, sort_keys=True) == json.dumps(theirs.body, sort_keys=True)
    assert json.dumps(messages_of(ours)) == json.dumps(messages_of(theirs))


@every_way
async def test_the_reported_usage_calibrates_the_estimates(ask: Ask):
    factors = list[float]()

    async def look(turn: Turn) -> Skip:
        factors.append(turn.ledger.factor)
        return Skip("it only looks")

    session = ContextPipeline([look]).session("s")
    async with talk(["ok", "ok"], model=Model(billing_factor=1.2)) as (_, client):
        await ask(session, client, loop(3))
        await ask(session, client, [*loop(3), user("and?")])

    assert factors == [1, pytest.approx(1.2, rel=0.05)]


REPLY: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "ok"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 9, "output_tokens": 1},
}


@pytest.mark.parametrize(
    "told",
    [
        {name: value for name, value in REPLY.items() if name != "usage"},
        REPLY | {"usage": None},
        REPLY | {"usage": "nine"},
        REPLY | {"usage": {"input_tokens": "nine"}},
        REPLY | {"usage": {"input_tokens": 9, "iterations": [None, "x"], "server_tool_use": 1}},
        REPLY | {"model": {"name": "m"}},
        REPLY | {"model": None},
        [REPLY],
        "<html>Welcome to the gateway</html>",
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_reply_without_usage_is_returned_to_the_caller(told, is_streamed):
    def gateway(_: http.Request) -> http.Response:
        if isinstance(told, str):
            return http.Response(200, text=told, headers={"content-type": "text/html"})
        if not is_streamed:
            return http.Response(200, json=told)
        begun = json.dumps({"type": "message_start", "message": told})
        events = (
            f"event: message_start\ndata: {begun}\n\nevent: message_stop\ndata: "
            f'{{"type": "message_stop"}}\n\n'
        )
        return http.Response(200, text=events, headers={"content-type": "text/event-stream"})

    async def ask(asked: Any, **given: Any) -> Any:
        reply = await asked(
            model="m", max_tokens=9, messages=[user("hi")], stream=is_streamed, **given
        )
        return [str(event) async for event in reply] if is_streamed else str(reply)

    sending = http.AsyncClient(transport=http.MockTransport(gateway))
    async with anthropic.AsyncAnthropic(
        api_key="k", base_url="http://gateway.test", http_client=sending
    ) as client:
        session = ContextPipeline().session("s")

        assert await ask(session.create, client=client) == await ask(client.messages.create)


async def test_an_unread_stream_calibrates_nothing_and_raises_nothing():
    session = ContextPipeline().session("s")
    async with talk(["ok", "ok", "ok"]) as (server, client):
        stream: Any = await created(session, client, loop(1), stream=True)
        await stream.close()
        async with session.stream(client, messages=loop(1), model="m", max_tokens=99):
            pass
        reply = await created(session, client, loop(1))

    assert reply.content[0].text == "ok"
    assert server.calls == 3


async def test_system_prompt_and_tools_count_into_the_budget(tmp_path):
    seen = list[int]()

    async def look(turn: Turn) -> Skip:
        seen.append(turn.overhead)
        return Skip("it only looks")

    session = ContextPipeline([look]).session("s")
    async with talk(["ok", "ok"]) as (server, client):
        await created(session, client, loop(1), system="Be brief. " * 50, tools=iter(TOOLS))
        await created(session, client, loop(1), system=NOT_GIVEN, tools=NOT_GIVEN)

    assert seen[0] > 500
    assert seen[1] == 0
    assert [len(request.body.get("tools", [])) for request in server.requests] == [1, 0]


@every_way
async def test_a_message_appended_during_a_request_is_in_the_next_request(ask: Ask, tmp_path):
    session, history = truncating(tmp_path).session("s"), loop(2)

    def think(body: RequestBody) -> str:
        if len(body["messages"]) == 5:
            history.append(user("one more thing"))
        return "done"

    async with talk(think) as (server, client):
        await ask(session, client, history)
        await ask(session, client, history)

    first, second = map(messages_of, server.requests)
    assert second == [*first, user("one more thing")]


async def test_stale_thinking_is_dropped_by_the_api_and_not_refused():
    async def forget(turn: Turn) -> Change | Skip:
        first = turn.messages[0]
        if len(turn.messages) < 6 or first["content"] == "go on":
            return Skip("it is early")
        return Change([user("go on"), *turn.messages[1:]], may_grow=True)

    history: list[Any] = [user("go")]
    session = ContextPipeline([forget]).session("s")
    async with talk(lambda _: answer_with(thinking("hm"), tool_use("look", {}))) as (
        server,
        client,
    ):
        for ask in (created, helped, created, helped, created):
            reply = await ask(session, client, history, extra_headers={"x-mine": "1"})
            content = [block.to_dict() for block in reply.content]
            history += [
                {"role": "assistant", "content": content},
                user(tool_result(reply.content[-1].id, "ok")),
            ]

    assert not server.refused
    dropped = [bool(request.dropped) for request in server.requests]
    assert dropped == [False, False, False, True, True]
    assert {request.headers["x-mine"] for request in server.requests} == {"1"}


# Cache breakpoints --------------------------------------------------------------------------------


def marked(messages: list[Any]) -> list[int]:
    return [index for index, message in enumerate(messages) if any(cache_marks(message))]


def rewriting(**results: int) -> ContextPipeline:
    """A pipeline that shortens the result at an index once the context has so many messages."""

    async def shorten(turn: Turn) -> Change | Skip:
        index = results.get(f"at_{len(turn.messages)}")
        if index is None:
            return Skip("it is not the time")
        [result] = tool_results(turn.messages, index, index + 1)
        return Change(rewrite(turn.messages, {result.place: "It was read."}))

    return ContextPipeline([shorten])


async def ask_in_turns(
    ask: Ask, pipeline: ContextPipeline, turns: int, **options: Any
) -> list[Received]:
    session, history = pipeline.session("s"), loop(turns)
    async with talk(lambda _: "ok", model=Model(min_cached_tokens=1)) as (server, client):
        for end in range(1, len(history) + 1, 2):
            await ask(session, client, history[:end], system="Be brief.", **options)
    assert not server.refused
    return server.requests


@every_way
async def test_requested_breakpoints_are_placed_around_rewritten_messages(
    ask: Ask,
):
    requests = await ask_in_turns(ask, rewriting(at_19=6), 9, cache_breakpoints=4)

    before, last = requests[-2:]
    assert marked(messages_of(before)) == [14, 16]
    assert marked(messages_of(last)) == [5, 6, 18]
    assert last.body["system"] == [{"type": "text", "text": "Be brief.", **MARK}]
    assert cast("Any", last.usage).cache_read_input_tokens == requests[2].tokens


@every_way
async def test_the_next_rewrite_reads_everything_up_to_the_end_of_the_last_one_from_the_cache(
    ask: Ask,
):
    requests = await ask_in_turns(ask, rewriting(at_41=6, at_49=8), 24, cache_breakpoints=4)

    second = requests[-1]
    kept = {**second.body, "messages": messages_of(second)[:7]}
    async with talk(["ok"]) as (server, client):
        await client.messages.create(**cast("Any", kept))
    assert cast("Any", second.usage).cache_read_input_tokens == server.requests[0].tokens


@every_way
async def test_by_default_only_breakpoints_without_cost_are_placed(ask: Ask):
    requests = await ask_in_turns(ask, rewriting(at_19=6), 9)

    assert not any(marked(messages_of(request)) for request in requests)
    assert {str(request.body["system"]) for request in requests} == {"Be brief."}


@needs_automatic_caching
@every_way
async def test_by_default_a_request_with_automatic_caching_gets_the_breakpoints_without_cost(
    ask: Ask,
):
    requests = await ask_in_turns(ask, rewriting(at_19=6), 9, **MARK)

    assert [marked(messages_of(request)) for request in requests[:-1]] == [[]] * 9
    assert marked(messages_of(requests[-1])) == [5, 6]


@every_way
async def test_with_a_cache_lifetime_of_an_hour_every_mark_is_for_an_hour(ask: Ask):
    session = ContextPipeline().session("s", cache_seconds=3600)
    system = [{"type": "text", "text": "Be brief.", **MARK}]
    async with talk(["ok"]) as (server, client):
        await ask(session, client, loop(2), system=system, cache_breakpoints=4)

    [sent] = server.requests
    marks = [mark for message in messages_of(sent) for _, mark in cache_marks(message)]
    marks += [block["cache_control"] for block in cast("Any", sent.body["system"])]
    assert marks == [{"type": "ephemeral", "ttl": "1h"}] * 3


@every_way
async def test_a_repeated_request_has_the_same_breakpoints(ask: Ask):
    session, history = rewriting(at_19=6).session("s"), loop(9)
    async with talk([overloaded(), "ok"]) as (server, client):
        with pytest.raises(anthropic.APIStatusError):
            await ask(session, client, history, cache_breakpoints=4)
        await ask(session, client, history, cache_breakpoints=4)

    assert [marked(messages_of(request)) for request in server.requests] == [[5, 6, 18]] * 2


@every_way
async def test_the_history_has_no_cache_marks_of_ctxpipe(ask: Ask):
    history = loop(9)
    before = copy.deepcopy(history)
    async with talk(["ok"]) as (_, client):
        await ask(rewriting(at_19=6).session("s"), client, history, cache_breakpoints=4)

    assert history == before


@every_way
@pytest.mark.parametrize("wrong", [-1, 5, True, "4"])
async def test_a_wrong_number_of_breakpoints_is_refused_before_anything_is_sent(ask: Ask, wrong):
    async with talk(["ok"]) as (server, client):
        with pytest.raises(SettingsError, match=r"cache_breakpoints is .*; give 0 to 4, or None"):
            await ask(ContextPipeline().session("s"), client, loop(1), cache_breakpoints=wrong)

    assert not server.requests


# Too long -----------------------------------------------------------------------------------------

WITHOUT_NUMBERS = [
    Failure(413, "request_too_large", "Request too large"),
    Failure(400, "invalid_request_error", "Input is too long for requested model."),
]


@every_way
@pytest.mark.parametrize("refusal", [prompt_too_long(), *WITHOUT_NUMBERS])
async def test_a_request_refused_as_too_long_is_sent_once_more_shortened(
    refusal: Failure, ask: Ask, tmp_path
):
    session, history = truncating(tmp_path, 30_000).session("s"), loop(20)

    async with talk([refusal, "ok", "ok"]) as (server, client):
        reply = await ask(session, client, history, system="Be brief.")
        await ask(session, client, [*history, user("and?")], system="Be brief.")

    first, second, third = server.requests
    assert reply.role == "assistant"
    assert len(second.raw) < len(first.raw) / 2
    assert messages_of(third) == [*messages_of(second), user("and?")]
    assert await session.history() == [*history, user("and?")]


@every_way
@pytest.mark.parametrize(
    ("history", "calls"),
    [(loop(20), 2), ([user("go " * 2000)], 1)],
    ids=["a shorter one that is too long as well is the last", "one that is as long is not sent"],
)
async def test_a_request_that_stays_too_long_is_not_sent_again(
    ask: Ask, history: list[Message], calls, tmp_path
):
    async with talk(lambda _: prompt_too_long(), max_retries=2) as (server, client):
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await ask(truncating(tmp_path).session("s"), client, history)

    assert server.calls == calls


async def test_a_request_that_grew_instead_is_not_sent_again():
    async def grow(turn: Turn) -> Change | Skip:
        return (
            Change([user("preface " * 9), *turn.messages], may_grow=True)
            if turn.force
            else Skip("no need")
        )

    async with talk(lambda _: prompt_too_long()) as (server, client):
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            await created(ContextPipeline([grow]).session("s"), client, loop(2))

    assert server.calls == 1


async def test_a_window_smaller_than_the_budget_is_reported_and_remembered(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    session, history = truncating(tmp_path).session("s"), loop(20)

    async with talk(lambda _: "ok", model=Model(window=6000)) as (server, client):
        await created(session, client, history)
        await created(session, client, [*history, user("and?")])

    refused, shorter, following = server.requests
    assert server.refused == [refused]
    assert messages_of(following) == [*messages_of(shorter), user("and?")]
    told = [record.getMessage() for record in caplog.records if record.name == "ctxpipe"]
    assert told == [
        (
            "session s: the window of m is 6,000 tokens, not 500,000: the budget of this session "
            "is lowered"
        )
    ]


LOOKALIKES = [
    Failure(
        400,
        "invalid_request_error",
        "max_tokens is too large: 300000. This model supports at most 64000",
    ),
    Failure(
        400,
        "invalid_request_error",
        "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum",
    ),
    Failure(400, "invalid_request_error", "Invalid 'metadata.user_id': string too long."),
    Failure(
        413,
        "error",
        "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 12000",
    ),
    Failure(
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 900 + 199500 > 200000",
    ),
]
TOO_FEW = [  # fewer tokens than were sent: the error quotes a text that has such a number
    Failure(
        400,
        "invalid_request_error",
        "messages.3.content: 'prompt is too long: 700 tokens > 600 maximum'",
    ),
    Failure(
        422,
        "error",
        (
            "got 'This model's maximum context length is 800 tokens, your request has 900 input "
            "tokens'"
        ),
    ),
]
TOO_MANY = [
    Failure(400, "invalid_request_error", "prompt is too long: 900000 tokens > 400000 maximum"),
    Failure(
        400,
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 300500 + 9 > 300000",
    ),
    Failure(413, "error", f"prompt is too long: {10**14 + 1} tokens > {10**14} maximum"),
]


@pytest.mark.parametrize("refusal", [*LOOKALIKES, *TOO_FEW, *WITHOUT_NUMBERS])
@every_way
async def test_a_context_far_below_its_budget_is_never_compacted_after_a_refusal(
    refusal: Failure, ask: Ask, tmp_path
):
    session = truncating(tmp_path).session("s")

    async with talk([refusal, refusal, "ok"]) as (server, client):
        for _ in range(2):
            with pytest.raises(anthropic.APIStatusError) as raised:
                await ask(session, client, loop(20))
            assert raised.value.status_code == refusal.status
        await ask(session, client, loop(20))

    assert [messages_of(request) for request in server.requests] == [loop(20)] * 3


@pytest.mark.parametrize("refusal", TOO_MANY)
async def test_numbers_of_a_refusal_that_contradict_a_reported_usage_are_ignored(
    refusal: Failure, tmp_path
):
    session = truncating(tmp_path).session("s")

    async with talk(["ok", refusal, "ok"]) as (server, client):
        await created(session, client, loop(20))
        with pytest.raises(anthropic.APIStatusError):
            await created(session, client, loop(20))
        await created(session, client, loop(20))

    assert [messages_of(request) for request in server.requests] == [loop(20)] * 3


async def test_a_second_refusal_after_shortening_is_not_retried(
    tmp_path,
):
    session, history = truncating(tmp_path, 30_000).session("s"), loop(20)

    async with talk(lambda _: WITHOUT_NUMBERS[1]) as (server, client):
        for _ in range(4):
            with pytest.raises(anthropic.BadRequestError, match="too long"):
                await created(session, client, history)
            history += [{"role": "assistant", "content": "Hm."}, user("again")]

    assert server.calls == 2 + 3  # one more try in the first turn only


async def test_a_system_prompt_given_only_once_does_not_make_a_context_count_as_shorter(
    tmp_path,
):
    session, history = truncating(tmp_path).session("s"), [user("hello")]
    sent = await session.run(history, system="Be brief. " * 9_000)

    assert (
        await session.recover(Refusal("a test", tokens=40_000, window=32_000), history, sent)
        is None
    )


async def test_a_smaller_window_lowers_the_budget_of_that_model_only_and_is_reported_once(
    tmp_path,
):
    budgets: dict[str, Budget] = {}

    async def note(turn: Turn) -> Skip:
        budgets[model] = turn.budget
        return Skip("only looking")

    pipeline = truncating(tmp_path).use(note)
    session, told = pipeline.session("s"), []
    sent = await session.run(loop(20), request={"model": "small"})
    refusal = Refusal("a test", tokens=40_000, window=32_000)

    model = "small"
    for number in range(3):
        history = [*loop(20), *step("a", result="x " * 4000 * number)]
        shorter = await session.recover(refusal, history, sent, request={"model": model})
        told += [notice for notice in (shorter.notices if shorter else ()) if "lowered" in notice]
    await session.run(loop(20), request={"model": model})
    model = "large"
    await session.run(loop(20), request={"model": model})

    assert told == [
        "the window of small is 32,000 tokens, not 500,000: the budget of this session is lowered"
    ]
    assert budgets["small"] == Budget(32_000, trigger=28_800, target=17_280)
    assert budgets["large"] == Budget(500_000)


async def test_the_output_reserve_of_the_budget_is_not_counted_twice(
    tmp_path,
):
    budget = Budget(200_000, reserve_output=64_000)
    session = ContextPipeline([SmartTruncate(LocalStorage(tmp_path))], budget=budget).session("s")
    sent = await session.run(loop(20), request={"model": "m"})
    refusal = Refusal("a test", tokens=143_653, window=200_000, answer_tokens=64_000)

    shorter = await session.recover(refusal, loop(20), sent, request={"model": "m"})
    later = await session.run(loop(20), request={"model": "m"})

    assert not [
        notice
        for notice in (*(shorter.notices if shorter else ()), *later.notices)
        if "lowered" in notice
    ]


async def test_a_window_below_a_prompt_that_the_model_accepted_is_ignored(
    tmp_path,
):
    session, history = truncating(tmp_path).session("s"), [*loop(20), user("x " * 30_000)]
    sent = await session.run(history, request={"model": "m"})
    session.observe({"input_tokens": sent.tokens_after}, sent.messages, model="m")

    assert (
        await session.recover(Refusal("a test", window=8192), history, sent, request={"model": "m"})
        is None
    )


@pytest.mark.parametrize(
    "failure", [rate_limited(), overloaded(), server_error(), Failure(400, "x", "no such model")]
)
@every_way
async def test_another_refusal_reaches_the_caller_and_shortens_nothing(
    failure: Failure, ask: Ask, tmp_path
):
    session = truncating(tmp_path).session("s")

    async with talk([failure, "ok"]) as (server, client):
        with pytest.raises(anthropic.APIStatusError):
            await ask(session, client, loop(20))
        await ask(session, client, loop(20))

    failed, following = server.requests
    assert messages_of(failed) == messages_of(following) == loop(20)


@pytest.mark.parametrize("failure", [rate_limited(0.01), overloaded(), server_error(), Cut()])
@every_way
async def test_a_retry_of_the_sdk_sends_the_same_request(failure: Reply, ask: Ask, tmp_path):
    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path), min_chars=500)])

    async with talk([failure, "ok"], max_retries=1) as (server, client):
        await ask(pipeline.session("s"), client, loop(1))

    assert server.requests[0].raw == server.requests[1].raw


@every_way
async def test_the_turn_after_a_cancelled_request_does_its_work(ask: Ask, tmp_path):
    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path), min_chars=500)])
    session, history = pipeline.session("s"), loop(1)

    arrived = anyio.Event()

    def hang(_: RequestBody) -> Reply:
        arrived.set()
        return Hang()

    async def one_call(client: anthropic.AsyncAnthropic):
        await ask(session, client, history)

    async with talk(hang) as (server, client), anyio.create_task_group() as tasks:
        tasks.start_soon(one_call, client)
        with anyio.fail_after(30):
            await arrived.wait()
        tasks.cancel_scope.cancel()
    async with talk(["ok"]) as (later, client):
        await ask(session, client, [*history, *step("t9", result="short")])

    assert messages_of(later.requests[0])[:-2] == messages_of(server.requests[0])
    assert await session.history() == [*history, *step("t9", result="short")]


async def test_recover_returns_none_if_only_the_system_prompt_is_shorter(
    tmp_path,
):
    budget = Budget(window=2000, trigger=1000, target=300)
    session = ContextPipeline([DirectOffload(LocalStorage(tmp_path))], budget=budget).session("s")
    history = [user("hello")]
    sent = await session.run(history, system="Be brief. " * 50)
    await session.run(history)  # as a turn that was cancelled, or one that only counts

    assert (
        await session.recover("prompt is too long: 2000 tokens > 1900 maximum", history, sent)
        is None
    )
