"""Why the prompt cache missed: every cause in a session with the real SDK against the loopback API.

Each session is played twice, with what breaks the cache and without; the difference of the two
bills is what the misses must cost.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import anthropic
import anyio
import pytest
from histories import assistant, step, text, tool_result, user
from in_memory import messages_api
from models import MODEL, OTHER_MODEL
from sdks import needs_middleware

from ctxpipe import BatchOffload, ContextPipeline, LocalStorage
from ctxpipe._text import as_dollars
from ctxpipe.adapters.anthropic import ctxpipe_middleware
from ctxpipe.diagnostics.misses import Cause
from ctxpipe.messages import Message
from ctxpipe.providers.prices import Prices
from ctxpipe.session import Session
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.testing import MessagesServer, Model, Received, Usage, answer_with

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
PRICES = Prices.relative()
TOOLS = [
    {"name": name, "description": f"{name} things.", "input_schema": {"type": "object"}}
    for name in ("look", "find", "move")
]
PIXEL = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


class Clock:
    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def words(number: int, count: int = 3000) -> str:
    return f"part {number}: " + "word " * count


class Talk:
    """A session that owns its history, and the requests that its server has answered."""

    def __init__(self, server: MessagesServer, client: anthropic.AsyncAnthropic, clock: Clock):
        self.server, self.client, self.clock = server, client, clock
        self.pipeline = ContextPipeline([], prices=PRICES)
        self.session = self.pipeline.session("s", clock=clock)
        self.history: list[Message] = []
        self.request: dict[str, Any] = {
            "model": OTHER_MODEL,
            "max_tokens": 2000,
            "system": "Be brief.",
            "tools": TOOLS,
            "cache_control": MARK,
        }

    async def turn(self, *content: Any, **changes: Any):
        """Send a further message and append the reply; *changes* of the request stay."""
        self.request |= changes
        self.history.append(user(*content))
        self.clock.seconds += 5
        reply = await self.session.create(self.client, messages=self.history, **self.request)
        self.history.append(assistant(*[block.to_dict() for block in reply.content]))

    async def turns(self, count: int):
        for _ in range(count):
            await self.turn(words(len(self.history)))

    @property
    def received(self) -> Sequence[Received]:
        return self.server.requests

    @property
    def bills(self) -> list[Usage]:
        return [request.usage for request in self.received if request.usage is not None]

    @property
    def price(self) -> float:
        return sum(
            bill.input_tokens * PRICES.input
            + (bill.cache_creation_input_tokens - bill.written_for_hour) * PRICES.write
            + bill.written_for_hour * PRICES.write_1h
            + bill.cache_read_input_tokens * PRICES.read
            for bill in self.bills
        )

    @property
    def loss(self) -> float:
        return sum(miss.cost(PRICES) for miss in self.session.diagnostics.cache_misses)

    @property
    def causes(self) -> list[Cause]:
        return [miss.cause for miss in self.session.diagnostics.cache_misses]


@asynccontextmanager
async def talk(script: Any = None, model: Model | None = None) -> AsyncIterator[Talk]:
    clock = Clock()
    answers = script or (lambda _: "Yes.")
    served = MessagesServer(answers, model=model or Model(), clock=clock)
    async with messages_api(served) as (server, client):
        yield Talk(server, client, clock)


Scene: TypeAlias = Callable[[Talk, bool], Awaitable[None]]


# What breaks the cache ----------------------------------------------------------------------------


async def another_order_of_tools(talk: Talk, is_harmed: bool):
    await talk.turns(4)
    await talk.turn("More?", **({"tools": TOOLS[::-1]} if is_harmed else {}))
    await talk.turns(1)


async def another_tool(talk: Talk, is_harmed: bool):
    await talk.turns(4)
    changed = [*TOOLS[:2], {**TOOLS[2], "description": "move thing."}]
    await talk.turn("More?", **({"tools": changed} if is_harmed else {}))
    await talk.turns(1)


async def a_clock_in_the_system_prompt(talk: Talk, is_harmed: bool):
    for second in range(4):
        stamp = second if is_harmed else 0
        await talk.turn(words(second), system=f"Be brief. It is 2026-11-23T07:00:0{stamp}Z.")


async def an_edited_message(talk: Talk, is_harmed: bool):
    await talk.turns(5)
    if is_harmed:
        talk.history[2] = user(words(99))
    await talk.turn("More?")


async def another_tool_choice(talk: Talk, is_harmed: bool):
    await talk.turns(4)
    await talk.turn("More?", **({"tool_choice": {"type": "none"}} if is_harmed else {}))


async def thinking_switched_on(talk: Talk, is_harmed: bool):
    await talk.turns(4)
    thinking = {"type": "enabled", "budget_tokens": 1024}
    await talk.turn("More?", **({"thinking": thinking} if is_harmed else {}))


async def a_first_image(talk: Talk, is_harmed: bool):
    await talk.turns(6)
    source = {"type": "base64", "media_type": "image/png", "data": PIXEL}
    image = {"type": "image", "source": source}
    await talk.turn(*([image] if is_harmed else []), text("What is this?"))


async def another_model(talk: Talk, is_harmed: bool):
    await talk.turns(4)
    await talk.turn("More?", **({"model": MODEL} if is_harmed else {}))


async def another_beta(talk: Talk, is_harmed: bool):
    await talk.turns(4)
    headers = {"extra_headers": {"anthropic-beta": "context-1m-2025-08-07"}}
    await talk.turn("More?", **(headers if is_harmed else {}))


async def a_pause_of_six_minutes(talk: Talk, is_harmed: bool):
    await talk.turns(4)
    talk.clock.seconds += 360 if is_harmed else 0
    await talk.turn("More?")


async def a_pause_of_two_hours(talk: Talk, is_harmed: bool):
    talk.request["cache_control"] = HOUR
    await talk.turns(4)
    talk.clock.seconds += 7200 if is_harmed else 600
    await talk.turn("More?")


async def more_blocks_than_a_mark_looks_back(talk: Talk, is_harmed: bool):
    await talk.turns(4)
    if not is_harmed:  # a mark where the one before was
        last: Any = talk.history[-2]
        marked = {**text(last["content"]), "cache_control": MARK}
        talk.history[-2] = user(marked)
    await talk.turn(*[text(f"line {number}") for number in range(25)])


async def two_requests_at_once(talk: Talk, is_harmed: bool):
    shared = user({**text(words(0, 20_000)), "cache_control": MARK})
    del talk.request["cache_control"]

    async def ask(number: int):
        history = [shared, assistant("So?"), user(f"question {number}")]
        await talk.session.create(talk.client, messages=history, **talk.request)

    if not is_harmed:
        await ask(0)
        await ask(1)
        return
    async with anyio.create_task_group() as group:
        group.start_soon(ask, 0)
        group.start_soon(ask, 1)


SCENES: dict[Scene, tuple[Cause, str]] = {
    another_order_of_tools: (Cause.TOOLS, "the tools changed, move first"),
    another_tool: (Cause.TOOLS, "the tools changed, move first"),
    a_clock_in_the_system_prompt: (Cause.SYSTEM, "the system prompt changed"),
    an_edited_message: (Cause.MESSAGE, "message 2 of the context is not the one sent before"),
    another_tool_choice: (Cause.TOOL_CHOICE, "tool_choice changed"),
    thinking_switched_on: (Cause.THINKING, "the thinking settings changed"),
    a_first_image: (Cause.IMAGES, "the first image was added, or the last one removed"),
    another_model: (
        Cause.MODEL,
        f"the model was switched, {MODEL} instead of {OTHER_MODEL}",
    ),
    another_beta: (Cause.BETAS, "the betas of the request changed"),
    a_pause_of_six_minutes: (
        Cause.LIFETIME,
        "365 seconds passed since the last use of the cache, which lives 300",
    ),
    a_pause_of_two_hours: (
        Cause.LIFETIME,
        "7,205 seconds passed since the last use of the cache, which lives 3,600",
    ),
    more_blocks_than_a_mark_looks_back: (
        Cause.LOOKBACK,
        "more than 20 blocks are between two cache marks",
    ),
    two_requests_at_once: (
        Cause.CONCURRENT,
        "the request was sent before the one before it was answered",
    ),
}


class Together:
    """A script that answers requests once *count* of them have come in."""

    def __init__(self, count: int):
        self.count = count
        self.has_all = anyio.Event()

    async def __call__(self, _: Any) -> str:
        self.count -= 1
        if self.count <= 0:
            self.has_all.set()
        await self.has_all.wait()
        return "Yes."


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_the_price_of_a_cause_is_the_difference_of_the_usages(scene: Scene):
    cause, detail = SCENES[scene]
    script = Together(2) if cause is Cause.CONCURRENT else None
    async with talk(script) as harmed:
        await scene(harmed, True)
    async with talk() as unharmed:
        await scene(unharmed, False)

    assert set(harmed.causes) == {cause}
    assert harmed.session.diagnostics.cache_misses[0].detail == detail
    assert harmed.loss == pytest.approx(harmed.price - unharmed.price, rel=0.02)
    assert unharmed.causes == []


async def test_a_request_without_a_mark_pays_the_full_price_for_everything_before():
    async with talk() as talking:
        del talking.request["cache_control"]
        await talking.turns(4)

    totals = [bill.total for bill in talking.bills]
    assert talking.causes == [Cause.NO_MARK] * 3
    assert [miss.tokens for miss in talking.session.diagnostics.cache_misses] == totals[:-1]
    assert talking.loss == pytest.approx(sum(totals[:-1]) * (PRICES.input - PRICES.read))
    assert "charged in full each turn" in str(talking.session.diagnostics.cache_misses[0])


async def test_a_rewrite_by_the_pipeline_gives_no_notice(tmp_path, caplog):
    caplog.set_level(logging.WARNING, "ctxpipe")
    async with talk() as talking:
        offload = BatchOffload(LocalStorage(tmp_path), gate=RatioGate(0.2), keep_recent=2)
        talking.session = ContextPipeline([offload], prices=PRICES).session(
            "s", clock=talking.clock
        )
        history = [user(words(0, 6000))]
        for number in range(4):
            history += step(f"t{number}", result=words(number, 2000))
            await talking.session.create(talking.client, messages=history, **talking.request)

    rewritten = [
        miss for miss in talking.session.diagnostics.cache_misses if miss.cause is Cause.REWRITE
    ]
    request = talking.received[rewritten[0].request - 1]
    assert request.prompt is not None
    assert request.usage is not None
    # All but the newest step was there before.
    known = request.prompt.sums[-3] - request.usage.cache_read_input_tokens
    assert set(talking.causes) == {Cause.REWRITE}
    assert rewritten[0].tokens == pytest.approx(known, rel=0.02)
    # What the caller cannot change is no notice.
    assert "prompt cache" not in caplog.text


async def test_a_cache_hit_gives_no_miss():
    async with talk() as talking:
        await talking.turns(12)
        talking.clock.seconds += 290
        await talking.turns(1)

    assert talking.session.diagnostics.cache_misses == ()
    assert talking.session.diagnostics.cache_tally == []


async def test_a_pause_before_a_change_is_the_cause_of_the_miss():
    async with talk() as talking:
        await talking.turns(4)
        talking.clock.seconds += 1000
        await talking.turn("More?", system="Be long.")

    assert talking.causes == [Cause.LIFETIME]


async def test_switching_back_to_a_model_misses_only_the_messages_between():
    async with talk() as talking:
        await talking.turns(4)
        await talking.turn(words(8), model=MODEL)
        await talking.turn("More?", model=OTHER_MODEL)

    first, second = talking.session.diagnostics.cache_misses
    assert (first.cause, second.cause) == (Cause.MODEL, Cause.MODEL)
    assert second.tokens < first.tokens / 3


async def test_a_message_edited_in_place_is_found_when_the_usage_shows_it():
    async with talk() as talking:
        await talking.turn(text(words(0)))
        await talking.turns(4)
        content: Any = talking.history[0]["content"]
        content[0]["text"] = words(1)
        await talking.turn("More?")

    assert talking.causes == [Cause.MESSAGE]
    assert "message 0 " in talking.session.diagnostics.cache_misses[0].detail


# Reports ------------------------------------------------------------------------------------------


async def test_each_cause_is_reported_once_with_its_price(caplog):
    notices: list[str] = []
    with caplog.at_level(logging.INFO, "ctxpipe"):
        async with talk() as talking:
            for second in range(5):
                request = {**talking.request, "system": f"It is 07:00:0{second}. The key is 12-34."}
                history = [user(words(0)), assistant("Yes."), user(f"more {second}")]
                await talking.session.create(talking.client, messages=history, **request)
                notices += (await talking.session.run(history)).notices

    [told] = [notice for notice in notices if "prompt cache" in notice]
    assert told.startswith("prompt cache: the system prompt changed;")
    assert " tokens are written again, $" in told
    assert len([line for line in caplog.messages if "prompt cache" in line]) == 1
    assert "12-34" not in caplog.text
    [tally] = talking.session.diagnostics.cache_tally
    assert (tally.cause, tally.misses) == (Cause.SYSTEM, 4)
    assert tally.cost == pytest.approx(talking.loss)


async def test_the_prices_of_the_model_are_looked_up_if_the_pipeline_has_none():
    async with talk() as talking:
        talking.session = ContextPipeline([]).session("s", clock=talking.clock)
        await talking.turns(3)
        await talking.turn("More?", system="Be long.")
        result = await talking.session.run([*talking.history, user("And?")])

    [miss] = talking.session.diagnostics.cache_misses
    dollars = miss.tokens * (2.5 - 0.2) / 1e6
    [notice] = result.notices
    assert notice.startswith("prompt cache: the system prompt changed; ")
    assert notice.endswith(f"; {miss.tokens:,} tokens are written again, {as_dollars(dollars)}")


async def test_a_usage_without_cache_tokens_gives_no_misses():
    session = ContextPipeline([]).session("s")
    history = [user(words(0))]
    for number in range(3):
        await session.run(history, system=f"Turn {number}.")
        session.observe({"input_tokens": 3000})
        history += [assistant("Yes."), user("More?")]

    assert session.diagnostics.cache_misses == ()


# Other ways to send -------------------------------------------------------------------------------


async def run_and_send(talk: Talk, session: Session, system: str):
    """Run a turn and send it like an agent that marks the end of each prompt itself."""
    context = await session.run(talk.history, system=system, tools=TOOLS)
    messages: list[Any] = copy.deepcopy(context.messages)
    messages[-1]["content"] = [{**text(messages[-1]["content"]), "cache_control": MARK}]
    request = {**talk.request, "system": system}
    del request["cache_control"]
    reply = await talk.client.messages.create(messages=messages, **request)
    session.observe(reply.usage)
    talk.history += [assistant("Yes."), user(words(len(talk.history)))]


async def test_marks_placed_by_the_agents_own_loop_are_taken_into_account():
    async with talk() as talking:
        talking.history = [user(words(0))]
        for _ in range(4):
            await run_and_send(talking, talking.session, "Be brief.")
        assert talking.causes == []
        await run_and_send(talking, talking.session, "Be long.")

    [miss] = talking.session.diagnostics.cache_misses
    assert miss.cause is Cause.SYSTEM
    assert miss.tokens == pytest.approx(talking.bills[-2].total, rel=0.02)


async def test_the_usage_of_a_stream_is_compared_too():
    async with talk() as talking:
        for system in ("Be brief.", "Be brief.", "Be long."):
            talking.history.append(user(words(len(talking.history))))
            talking.request["system"] = system
            async with talking.session.stream(
                talking.client, messages=talking.history, **talking.request
            ) as stream:
                await stream.until_done()
            talking.history.append(assistant("Yes."))

    assert talking.causes == [Cause.SYSTEM]


@needs_middleware
async def test_marks_placed_by_the_middleware_are_taken_into_account():
    pipeline = ContextPipeline([], prices=PRICES)
    clock = Clock()
    shaping = ctxpipe_middleware(pipeline, session_id="s", cache_breakpoints=4)
    served = MessagesServer(lambda _: "Yes.", clock=clock)
    async with messages_api(served, middleware=[shaping]) as (_, client):
        history = [user(words(0))]
        for system in ("Be brief.", "Be brief.", "Be brief.", "Be long."):
            await client.messages.create(
                model=OTHER_MODEL, max_tokens=9, system=system, messages=history
            )
            history += [assistant("Yes."), user(words(len(history)))]
    misses = pipeline.session("s").diagnostics.cache_misses

    assert [miss.cause for miss in misses] == [Cause.SYSTEM]
    assert misses[0].detail == "the system prompt changed"


async def test_a_refused_request_counts_as_not_written_to_the_cache():
    """The shorter one, sent after it, is compared with the one that was answered."""
    async with talk(model=Model(window=20_000)) as talking:
        await talking.turns(3)
        with pytest.raises(anthropic.BadRequestError, match="too long"):
            await talking.turn(words(9, 30_000))
        talking.history.pop()
        await talking.turn("More?")

    assert talking.session.diagnostics.cache_misses == ()


async def test_a_rewrite_of_a_refused_request_is_not_an_edit_by_the_caller(
    tmp_path,
):
    async with talk(model=Model(window=20_000)) as talking:
        offload = BatchOffload(LocalStorage(tmp_path), gate=RatioGate(0.99), keep_recent=1)
        session = ContextPipeline([offload], prices=PRICES).session("s", clock=talking.clock)
        history = [user(words(0, 6000))]
        for number in range(8):
            history += step(f"t{number}", result=words(number, 2000))
            await session.create(talking.client, messages=history, **talking.request)

    assert len(talking.server.refused) == 1
    assert {miss.cause for miss in session.diagnostics.cache_misses} == {Cause.REWRITE}


async def test_a_context_that_was_not_sent_is_not_compared():
    async with talk() as talking:
        await talking.turns(3)
        await talking.session.run([*talking.history, user("What if?")], system="Another one.")
        await talking.turns(1)

    assert talking.causes == []


async def test_calls_and_results_are_compared_by_their_content():
    calls = answer_with("Let me look.", {"type": "tool_use", "name": "look", "input": {"a": 1}})
    async with talk(lambda _: calls) as talking:
        history: list[Message] = [user(words(0))]
        for number in range(4):
            reply = await talking.session.create(
                talking.client, messages=history, **talking.request
            )
            block = reply.content[-1]
            assert block.type == "tool_use"
            history.append({"role": "assistant", "content": reply.content})
            history.append(user(tool_result(block.id, words(number))))

    assert talking.session.diagnostics.cache_misses == ()
