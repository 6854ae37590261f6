"""The session's client, lent to a summarizer that has none of its own.

And the one warning where there is no model.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import pytest
from histories import assistant, user
from in_memory import messages_api
from models import SUMMARIES
from sdks import needs_middleware

from ctxpipe import Budget, Compact, ContextPipeline, LocalStorage
from ctxpipe.adapters.anthropic import ctxpipe_middleware
from ctxpipe.messages import Message
from ctxpipe.session.client import lendable
from ctxpipe.stages.compact import Breaker
from ctxpipe.stages.reports import Compacted, StageReport
from ctxpipe.summarizers import (
    WITHOUT_MODEL,
    AnthropicSummarizer,
    ExtractiveSummarizer,
    Retry,
    Summarizer,
)
from ctxpipe.testing import MessagesServer, Reply, RequestBody, rate_limited


async def no_sleep(_seconds: float):
    """No wait between two attempts."""


class Run:
    """A pipeline that compacts at 3,600 tokens, and who wrote its summaries."""

    def __init__(self, folder: Path, summarize: Summarizer | None = None):
        self.details: list[Compacted] = []
        breaker = Breaker(Retry(sleep=no_sleep), cooldown_seconds=0)
        stage = Compact(summarize, archive=LocalStorage(folder), breaker=breaker)
        self.pipeline = ContextPipeline([stage], budget=Budget(window=4_000), on_report=self._note)

    def _note(self, report: StageReport):
        if isinstance(report.detail, Compacted) and report.outcome == "changed":
            self.details.append(report.detail)

    @property
    def writers(self) -> list[str]:
        return [detail.summarizer for detail in self.details]


def history(turns: int = 1) -> list[Message]:
    """A conversation of which each turn is too long for the budget."""
    return [
        message
        for n in range(turns)
        for message in (user(f"{n} " + "word " * 4_000), assistant("Done."))
    ] + [user("Go on.")]


def reply(body: RequestBody) -> Reply:
    return "## Goals & Decisions\nSummarized." if body["model"] == SUMMARIES else "Answered."


@asynccontextmanager
async def serving(
    script: Any = reply, **options: Any
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    given: Any = {"api_key": "given to the client alone", "max_retries": 2, **options}
    async with messages_api(MessagesServer(script), **given) as talking:
        yield talking


def models(server: MessagesServer) -> list[Any]:
    return [request.body["model"] for request in server.requests]


@pytest.mark.parametrize("is_beta", [False, True])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_request_lends_its_client(is_streamed, is_beta, tmp_path):
    run = Run(tmp_path)
    asked: Any = {"model": "m", "max_tokens": 9, "messages": history()}
    async with serving() as (server, client):
        session: Any = run.pipeline.session("s")
        asking = client.beta if is_beta else client
        if is_streamed:
            async with session.stream(asking, **asked) as stream:
                await stream.get_final_message()
        else:
            await session.create(asking, **asked)

    assert models(server) == [SUMMARIES, "m"]
    assert run.writers == ["AnthropicSummarizer"]
    assert WITHOUT_MODEL not in run.details[0].warnings


def shaping(run: Run):
    return serving(middleware=[ctxpipe_middleware(run.pipeline, session_id="s")])


@needs_middleware
async def test_the_middleware_lends_its_client(tmp_path):
    run = Run(tmp_path)
    async with shaping(run) as (server, client):
        await client.messages.create(model="m", max_tokens=9, messages=history())

    assert models(server) == [SUMMARIES, "m"]
    assert run.writers == ["AnthropicSummarizer"]


@needs_middleware
async def test_a_lent_client_with_our_middleware_is_not_shaped_again(tmp_path):
    run = Run(tmp_path)
    async with shaping(run) as (server, client):
        await run.pipeline.session("s").create(client, model="m", max_tokens=9, messages=history())

    assert models(server) == [SUMMARIES, "m"]
    assert "word word" in str(server.requests[0].body["messages"])


async def test_run_lends_the_client_that_it_is_given_and_a_later_compaction_by_hand_uses_it(
    tmp_path,
):
    run = Run(tmp_path)
    async with serving() as (server, client):
        session = run.pipeline.session("s")
        await session.run([user("hello " * 50), assistant("Hi."), user("And?")], client=client)
        await session.compact()

    assert models(server) == [SUMMARIES]


async def test_the_retries_of_a_lent_client_are_off(tmp_path):
    run = Run(tmp_path)
    failing = iter([rate_limited(0), "Summarized.", "Answered."])
    async with serving(lambda _: next(failing), max_retries=7) as (server, client):
        await run.pipeline.session("s").create(client, model="m", max_tokens=9, messages=history())

    assert models(server) == [SUMMARIES, SUMMARIES, "m"]
    assert run.details[0].attempts == 2


async def test_a_summarizers_own_client_is_kept(tmp_path):
    async with serving() as (own, client_of_its_own), serving() as (server, client):
        run = Run(tmp_path, AnthropicSummarizer(client_of_its_own))
        await run.pipeline.session("s").create(client, model="m", max_tokens=9, messages=history())

    assert (models(own), models(server)) == ([SUMMARIES], ["m"])


async def test_a_client_that_would_hold_the_loop_or_knows_other_models_is_not_lent():
    class Odd:
        _client = 7

    with anthropic.Anthropic(api_key="k") as synchronous:
        assert lendable(synchronous) is None
        assert lendable(synchronous.beta) is None
    for other in (None, Odd(), object(), "client"):
        assert lendable(other) is None


# Without a model ----------------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> int:
    return sum(1 for record in caplog.records if WITHOUT_MODEL in record.getMessage())


@pytest.mark.parametrize("summarize", [None, AnthropicSummarizer(), AnthropicSummarizer(model="m")])
async def test_without_a_model_a_session_warns_once_and_each_report_says_it(
    summarize: Summarizer | None, tmp_path, caplog
):
    caplog.set_level(logging.WARNING)
    run = Run(tmp_path, summarize)
    session = run.pipeline.session("s")

    for turns in (1, 2, 3):
        await session.run(history(turns))

    assert run.writers == ["ExtractiveSummarizer"] * 3
    assert all(WITHOUT_MODEL in detail.warnings for detail in run.details)
    assert told(caplog) == 1


async def test_each_session_warns_of_its_own(tmp_path, caplog):
    run = Run(tmp_path)

    for name in ("a", "b"):
        await run.pipeline.session(name).run(history())

    assert told(caplog) == 2


async def test_who_chose_the_extractive_summarizer_is_not_warned(tmp_path, caplog):
    run = Run(tmp_path, ExtractiveSummarizer())

    await run.pipeline.session("s").run(history())

    assert run.writers == ["ExtractiveSummarizer"]
    assert WITHOUT_MODEL not in run.details[0].warnings
    assert told(caplog) == 0


async def test_the_summarizer_alone_warns_too(caplog):
    await AnthropicSummarizer()(history())

    assert told(caplog) == 1
