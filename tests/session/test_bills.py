"""The estimate of a session after usages, also impossible ones, and summaries by the server."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from histories import assistant, text, user

from ctxpipe import (
    Budget,
    Compact,
    ContextPipeline,
    LocalStorage,
    MemoryStorage,
    SmartTruncate,
    Turn,
)
from ctxpipe.messages import Message
from ctxpipe.providers.refusals import read_refusal
from ctxpipe.session import Session
from ctxpipe.session.client import observe_stream
from ctxpipe.session.session import conversation_of
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.summarizers import ExtractiveSummarizer, PromptTooLong, Retry, Summary, SummaryRefused
from ctxpipe.turn.state import _log_unused_window


class Counting:
    """A summarizer that counts how often it was paid."""

    def __init__(self) -> None:
        self.paid = 0

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        self.paid += 1
        return Summary(f"{len(messages)} messages")


def compacting(folder: Path) -> tuple[Session, Counting]:
    """A session that compacts at 184,000 tokens, and who writes its summaries."""
    summarize = Counting()
    pipeline = ContextPipeline([Compact(summarize, archive=LocalStorage(folder))])
    return pipeline.session("s"), summarize


def words(number: int) -> str:
    return "word " * number


SEARCHES = {"server_tool_use": {"web_search_requests": 3}}
BILLS: dict[str, dict[str, Any]] = {
    "the sum of four requests": {"input_tokens": 1_000, "cache_read_input_tokens": 189_000},
    "a sum that is possible, but of searches": {"input_tokens": 120_000, **SEARCHES},
    "its parts": {
        "input_tokens": 190_000,
        "iterations": [
            {"type": "message", "input_tokens": tokens} for tokens in (60_000, 63_000, 67_000)
        ],
        **SEARCHES,
    },
    "a proxy's": {"input_tokens": 10**15},
    "in characters": {"input_tokens": 250_000},
    "not a number": {"input_tokens": float("nan"), "cache_read_input_tokens": "many"},
}


@pytest.mark.parametrize("name", BILLS)
async def test_a_usage_that_cannot_be_that_of_the_context_leads_to_no_compaction(
    name: str, tmp_path
):
    session, summarize = compacting(tmp_path)
    history = [user(words(50_000))]

    for _ in range(3):
        await session.run(history)
        session.observe(BILLS[name], model="m")
        history += [assistant("a"), user(words(5_000))]
    result = await session.run(history)

    assert summarize.paid == 0
    assert result.messages == history


class Breaking(Counting):
    """Takes ten messages at once; fails at those that hold *breaks*, or hangs there."""

    def __init__(self, breaks: str, failure: Exception | None):
        super().__init__()
        self.breaks, self.failure = breaks, failure
        self.seen: list[str] = []

    async def __call__(self, messages: Sequence[Message], /) -> Summary:
        if len(messages) > 12:
            raise PromptTooLong("too many")
        if self.breaks in str(messages):
            if self.failure is None:
                await anyio.sleep_forever()
            else:
                raise self.failure
        self.seen += re.findall(r"step \d+\.", str(messages))
        return await super().__call__(messages)


FAILURES = [RuntimeError("500"), ConnectionResetError(), SummaryRefused("no"), None]


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
@pytest.mark.parametrize("breaks", ["step 5.", "step 9."])
async def test_summarized_parts_of_a_failed_turn_are_used_by_the_next(
    breaks, failure: Exception | None, tmp_path
):
    summarize = Breaking(breaks, failure)
    # What answers may be slow under load; without a failure it hangs.
    retry = Retry(max_retries=0, attempt_seconds=60 if failure else 0.5)
    stage = Compact(
        summarize, archive=LocalStorage(tmp_path), breaker=Breaker(retry=retry, cooldown_seconds=0)
    )
    session = ContextPipeline([stage], budget=Budget(window=5_300)).session("s")
    history = [
        message
        for number in range(10)
        for message in (user(f"step {number}. " + words(300)), assistant(words(300)))
    ]
    history.append(user("last"))

    for _ in range(3):
        result = await session.run(history)
        assert result.messages == history
        history = [*history, assistant("x"), user("y")]
    summarize.breaks = "nothing"
    result = await session.run(history)

    assert sorted(summarize.seen) == [f"step {number}." for number in range(10)]
    assert len(result.messages) < len(history)


SUMMARY_BLOCK = {"type": "compaction", "content": "what went before, in short"}


@pytest.mark.parametrize("summaries", [1, 2])
@pytest.mark.parametrize("bill", [1_000, 5_000])
async def test_messages_that_the_server_summarized_are_not_counted(summaries, bill, tmp_path):
    session, summarize = compacting(tmp_path)
    history = [user("hi"), assistant(words(100_000)), user("more")]
    await session.run(history)
    session.observe({"input_tokens": 105_000}, model="m")
    for _ in range(summaries):
        history += [assistant(SUMMARY_BLOCK, text("ok")), user("go on")]
        await session.run(history)
        session.observe({"input_tokens": bill}, model="m")
        history += [assistant(words(100_000)), user("and now?")]

        result = await session.run(history)

        assert result.messages == history
    assert summarize.paid == 0


async def test_results_that_a_stream_reports_as_cleared_count_as_sent(tmp_path):
    session, _ = compacting(tmp_path)
    history = [user(words(50_000))]
    await session.run(history)
    edits = {
        "applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_input_tokens": 20_000}]
    }
    usage = {"input_tokens": 45_000}

    class Stream:
        async def events(self) -> Any:
            yield {"type": "message_start", "message": {"usage": usage, "model": "m"}}
            yield {"type": "content_block_start"}
            yield {
                "type": "message_delta",
                "usage": {"output_tokens": 3},
                "context_management": edits,
            }

        def __init__(self) -> None:
            self._iterator = self.events()

    stream: Any = Stream()
    observe_stream(stream, lambda begun: session.observe(begun, model=begun["model"]))
    seen = [event["type"] async for event in stream._iterator]

    report = (await session.run([*history, assistant("a"), user("b")])).reports[0]
    assert seen == ["message_start", "content_block_start", "message_delta"]
    assert report.reason.startswith("65,00")  # 65,000, and the two new messages


# What is too long ---------------------------------------------------------------------------------

CODE = '{"error": {"message": "Too long.", "code": "context_length_exceeded"}}'


async def test_a_limit_from_a_refusal_code_survives_in_the_journal(
    tmp_path,
):
    storage = LocalStorage(tmp_path)
    stages = [Compact(ExtractiveSummarizer(), storage)]
    session = ContextPipeline(stages).session("s", journal=storage)
    history = [user("hi"), assistant(words(20_000)), user("more")]
    sent = await session.run(history, request={"model": "m"})

    shorter = await session.recover(CODE, history, sent, request={"model": "m"})

    assert shorter is not None
    assert "at most" in str(shorter.notices)
    history += [assistant("fine"), user("go on")]
    await session.run(history, request={"model": "m"})  # it is written with a turn
    again = ContextPipeline(stages).session("s", journal=storage)
    result = await again.run(
        [*history, assistant(words(30_000)), user("?")], request={"model": "m"}
    )
    assert result.tokens_after < 30_000
    other = await again.run(
        [user("hi"), assistant(words(30_000)), user("?")], request={"model": "n"}
    )
    assert other.tokens_saved == 0


async def test_a_413_for_bytes_sets_no_limit_of_tokens(tmp_path):
    session = ContextPipeline([Compact(ExtractiveSummarizer(), LocalStorage(tmp_path))]).session(
        "s"
    )
    history = [user("hi"), assistant(words(120_000)), user("more")]
    sent = await session.run(history)
    refusal = read_refusal(413, "too large")
    assert refusal is not None

    shorter = await session.recover(refusal, history, sent)

    assert shorter is not None
    assert "window" not in str(shorter.notices)


@pytest.mark.parametrize(
    ("budget", "is_compacted"),
    [(Budget(), True), (Budget(window=200_000), False), (Budget(trigger=0.5), True)],
    ids=["by the model", "as it was given", "a share"],
)
async def test_the_listed_window_of_a_model_applies_if_the_budget_names_none(
    budget: Budget, is_compacted, tmp_path
):
    stages = [Compact(ExtractiveSummarizer(), LocalStorage(tmp_path))]
    session = ContextPipeline(stages, budget=budget).session("s")
    history = [user("hi"), assistant(words(20_000)), user("more")]

    result = await session.run(history, request={"model": "gpt-3.5-turbo"})

    assert (result.tokens_saved > 0) == is_compacted


async def test_a_window_that_leads_to_no_shorter_context_is_known_to_another_process(tmp_path):
    storage, request = LocalStorage(tmp_path), {"model": "m"}
    stages = [SmartTruncate(storage)]
    session = ContextPipeline(stages).session("s", journal=storage)
    history = [user(words(3_900))]
    sent = await session.run(history, request=request)
    assert await session.recover(CODE, history, sent, request=request) is None

    again = ContextPipeline(stages).session("s", journal=storage)
    for _ in range(5):
        history += [assistant(words(1_000)), user("on")]
    result = await again.run(history, request=request)

    assert result.tokens_saved > 0


async def test_a_fork_knows_the_windows_that_its_conversation_has_learned(tmp_path):
    request = {"model": "m"}
    stages = [Compact(ExtractiveSummarizer(), LocalStorage(tmp_path))]
    session = ContextPipeline(stages).session("s")
    history = [user(words(20_000))]
    sent = await session.run(history, request=request)
    await session.recover(CODE, history, sent, request=request)

    fork = Session(conversation_of(session).fork())
    result = await fork.run([*history, assistant(words(30_000)), user("?")], request=request)

    assert result.tokens_after < 30_000


async def test_a_fork_estimates_as_the_conversation_that_it_was_made_of():
    estimates: list[int] = []

    async def look(turn: Turn) -> None:
        estimates.append(await turn.tokens())

    session = ContextPipeline([look]).session("s")
    history = [user(words(3_000))]
    await session.run(history)
    session.observe({"input_tokens": 5_000}, model="m")

    fork = Session(conversation_of(session).fork())
    grown = [*history, assistant("a"), user("b")]
    await fork.run(grown)
    await session.run(grown)

    assert estimates[1] == estimates[2] > 5_000


async def test_another_process_estimates_by_the_model_that_replied_last(tmp_path):
    """The models take turns: the first one replies again after the second."""
    storage, estimates = LocalStorage(tmp_path), list[int]()

    async def look(turn: Turn) -> None:
        estimates.append(await turn.tokens())

    session = ContextPipeline([look]).session("s", journal=storage)
    history = [user(words(3_000))]
    for model, tokens in (("a", 4_000), ("b", 6_000), ("a", 4_000)):
        await session.run(history)
        session.observe({"input_tokens": tokens}, model=model)
        history = [*history, assistant("a"), user("b")]
    await session.run(history)
    await ContextPipeline([look]).session("s", journal=storage).run(history)

    assert estimates[-1] == estimates[-2] < 5_000


async def test_a_small_window_of_one_model_does_not_limit_another(tmp_path):
    session = ContextPipeline([Compact(ExtractiveSummarizer(), LocalStorage(tmp_path))]).session(
        "s"
    )
    history = [user("hi"), assistant(words(20_000)), user("more")]
    sent = await session.run(history, request={"model": "small"})
    await session.recover(CODE, history, sent, request={"model": "small"})

    other = [user("hello"), assistant(words(50_000)), user("more")]
    result = await session.run(other, request={"model": "large"})

    assert result.tokens_saved == 0


TOO_LONG_TO_ANSWER = (
    "This model's maximum context length is 30000 tokens. However, you requested 33000 tokens "
    "(25000 in the messages, 8000 in the completion). Please reduce the length of the messages."
)


async def test_a_learned_window_includes_what_the_budget_reserves_for_the_answer(tmp_path):
    budget = Budget(window=200_000, reserve_output=8_000)
    stages = [Compact(ExtractiveSummarizer(), LocalStorage(tmp_path))]
    session = ContextPipeline(stages, budget=budget).session("s")
    history = [user("hi"), assistant(words(25_000)), user("more")]

    notices: list[str] = []
    for _ in range(2):  # the same refusal again teaches nothing new
        sent = await session.run(history, request={"model": "m"})
        shorter = await session.recover(TOO_LONG_TO_ANSWER, history, sent, request={"model": "m"})
        notices += [] if shorter is None else shorter.notices
        history += [assistant(words(25_000)), user("and more")]

    assert [notice for notice in notices if "window" in notice] == [
        "the window of m is 30,000 tokens, not 200,000: the budget of this session is lowered"
    ]


async def test_after_a_reply_a_second_refusal_of_the_same_size_is_recovered_from(tmp_path):
    stages = [Compact(ExtractiveSummarizer(), LocalStorage(tmp_path))]
    session = ContextPipeline(stages, budget=Budget(window=30_000)).session("s")
    history = [user("hi"), assistant(words(15_000)), user("more")]

    for _ in range(2):
        sent = await session.run(history)
        shorter = await session.recover("prompt is too long", history, sent)
        assert shorter is not None
        session.observe({"input_tokens": shorter.tokens_after}, shorter.messages)
        grown = sent.tokens_after - shorter.tokens_after
        history += [assistant(words(grown)), user("more")]


async def test_the_log_says_once_which_window_is_used_and_how_to_use_more(caplog):
    stages = [Compact(ExtractiveSummarizer(), MemoryStorage())]
    history = [user("hi"), assistant("Hello."), user("more")]
    _log_unused_window.cache_clear()
    with caplog.at_level(logging.INFO, "ctxpipe"):
        for budget in (Budget(), Budget(), Budget(window=1_000_000), Budget(window=200_000)):
            session = ContextPipeline(stages, budget=budget).session("s")
            await session.run(history, request={"model": EXAMPLE_MODEL})

    [line] = [line for line in caplog.messages if "uses more" in line]
    assert line == (
        f"contexts for {EXAMPLE_MODEL} are kept within the default window of 200,000 tokens, "
        "because long prompts cost more in each turn; the model has 1,000,000: "
        "Budget(window=1_000_000) uses more"
    )
