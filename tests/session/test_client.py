"""Summaries with the client of a session, and the warning if there is no model to write them."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anthropic
import pytest
from anyio import to_thread
from histories import assistant, user
from in_memory import messages_api
from models import MODEL, SUMMARIES
from sdks import needs_middleware

from ctxpipe import Budget, Compact, ContextPipeline, LocalStorage
from ctxpipe.adapters.anthropic import ctxpipe_middleware, ctxpipe_sync_middleware
from ctxpipe.messages import Message
from ctxpipe.providers.prices import prices_of
from ctxpipe.session.client import find_agent_model
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.stages.reports import Compacted, StageReport
from ctxpipe.summarizers import (
    WITHOUT_MODEL,
    AgentSummarizer,
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


def is_about_a_summary(body: RequestBody) -> bool:
    return "<transcript>" in str(body["messages"])


def reply(body: RequestBody) -> Reply:
    return "## Goals & Decisions\nSummarized." if is_about_a_summary(body) else "Answered."


@asynccontextmanager
async def serving(
    script: Any = reply, **options: Any
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    given: Any = {"api_key": "given to the client alone", "max_retries": 2, **options}
    async with messages_api(MessagesServer(script), **given) as talking:
        yield talking


def models(server: MessagesServer) -> list[Any]:
    """The model of each request, in capitals where it is asked for a summary."""
    return [
        request.body["model"].upper() if is_about_a_summary(request.body) else request.body["model"]
        for request in server.requests
    ]


@pytest.mark.parametrize("is_beta", [False, True])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_create_writes_the_summary_with_its_own_client(is_streamed, is_beta, tmp_path):
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

    assert models(server) == ["M", "m"]
    assert run.writers == ["AgentSummarizer"]
    assert WITHOUT_MODEL not in run.details[0].warnings


def shaping(run: Run):
    return serving(middleware=[ctxpipe_middleware(run.pipeline, session_id="s")])


@needs_middleware
async def test_the_middleware_writes_the_summary_with_its_own_client(tmp_path):
    run = Run(tmp_path)
    async with shaping(run) as (server, client):
        await client.messages.create(model="m", max_tokens=9, messages=history())

    assert models(server) == ["M", "m"]
    assert run.writers == ["AgentSummarizer"]


@needs_middleware
async def test_a_summary_request_through_ctxpipes_middleware_is_not_shaped(tmp_path):
    run = Run(tmp_path)
    async with shaping(run) as (server, client):
        await run.pipeline.session("s").create(client, model="m", max_tokens=9, messages=history())

    assert models(server) == ["M", "m"]
    assert "word word" in str(server.requests[0].body["messages"])


async def test_compact_uses_the_client_of_an_earlier_run(
    tmp_path,
):
    run = Run(tmp_path)
    async with serving() as (server, client):
        session = run.pipeline.session("s")
        await session.run([user("hello " * 50), assistant("Hi."), user("And?")], client=client)
        await session.compact()

    assert models(server) == [SUMMARIES.upper()]


async def test_the_retries_of_the_agents_client_are_off_for_summaries(tmp_path):
    run = Run(tmp_path)
    failing = iter([rate_limited(0), "Summarized.", "Answered."])
    async with serving(lambda _: next(failing), max_retries=7) as (server, client):
        await run.pipeline.session("s").create(client, model="m", max_tokens=9, messages=history())

    assert models(server) == ["M", "M", "m"]
    assert run.details[0].attempts == 2


async def test_a_summarizer_with_a_client_uses_its_own(tmp_path):
    async with serving() as (own, client_of_its_own), serving() as (server, client):
        run = Run(tmp_path, AnthropicSummarizer(client_of_its_own))
        await run.pipeline.session("s").create(client, model="m", max_tokens=9, messages=history())

    assert (models(own), models(server)) == ([SUMMARIES.upper()], ["m"])


@pytest.mark.parametrize(
    ("summarize", "environment", "asked"),
    [
        (None, "", "M"),
        (None, "small", "SMALL"),
        (AgentSummarizer("tiny"), "small", "TINY"),
        (AnthropicSummarizer(), "", "M"),
        (AnthropicSummarizer(), "small", "SMALL"),
        (AnthropicSummarizer(model="tiny"), "small", "TINY"),
    ],
)
async def test_a_summary_uses_the_configured_model_or_else_the_agents_own(
    summarize: Summarizer | None, environment: str, asked: str, tmp_path, monkeypatch
):
    monkeypatch.setenv("SUMMARY_MODEL", environment)
    run = Run(tmp_path, summarize)
    async with serving() as (server, client):
        await run.pipeline.session("s").create(client, model="m", max_tokens=9, messages=history())

    assert models(server) == [asked, "m"]
    assert run.details[0].model.upper() == asked


@needs_middleware
async def test_the_middleware_has_a_setting_for_the_summary_model(tmp_path):
    run = Run(tmp_path)
    shaping = ctxpipe_middleware(run.pipeline, session_id="s", summary_model="small")
    async with serving(middleware=[shaping]) as (server, client):
        await client.messages.create(model="m", max_tokens=9, messages=history())

    assert models(server) == ["SMALL", "m"]


@needs_middleware
async def test_a_synchronous_client_writes_summaries_too(tmp_path):
    run = Run(tmp_path)

    def ask(url: str):
        shaping = ctxpipe_sync_middleware(run.pipeline, session_id="s")
        with anthropic.Anthropic(base_url=url, api_key="k", middleware=[shaping]) as client:
            client.messages.create(model="m", max_tokens=9, messages=cast("Any", history()))

    async with MessagesServer(reply) as server:
        await to_thread.run_sync(ask, server.url)

    assert models(server) == ["M", "m"]
    assert run.writers == ["AgentSummarizer"]


async def test_a_summary_is_sent_with_the_headers_and_accounts_of_the_request(tmp_path):
    run = Run(tmp_path)
    for_whom: Any = {"metadata": {"user_id": "u"}, "extra_headers": {"x-route": "eu"}}
    async with serving() as (server, client):
        await run.pipeline.session("s").create(
            client, model="m", max_tokens=9, messages=history(), **for_whom
        )

    summary = server.requests[0]
    assert is_about_a_summary(summary.body)
    assert summary.body["metadata"] == {"user_id": "u"}
    assert summary.headers["x-route"] == "eu"


async def test_a_summary_of_run_uses_the_model_that_answered_the_turns(tmp_path):
    run = Run(tmp_path)
    async with serving() as (server, client):
        session = run.pipeline.session("s")
        begun = [user("hello " * 50)]
        await session.run(begun, client=client)
        session.observe({"model": "m", "usage": {"input_tokens": 60, "output_tokens": 2}})
        await session.run([*begun, assistant("Hi."), *history()])

    assert models(server) == ["M"]


async def test_a_report_names_the_summary_model_and_its_cost(tmp_path):
    run = Run(tmp_path)
    async with serving() as (_, client):
        for model in (MODEL, "m"):
            session = run.pipeline.session(model)
            await session.create(client, model=model, max_tokens=9, messages=history())

    priced, unknown = run.details
    prices = prices_of(MODEL)
    cost = priced.input_tokens * prices.input + priced.output_tokens * prices.output
    assert priced.model == MODEL
    assert priced.dollars == pytest.approx(cost)
    assert f"(AgentSummarizer, {MODEL}, $0.0" in str(priced)
    assert (unknown.model, unknown.dollars) == ("m", None)
    assert "(AgentSummarizer, m)" in str(unknown)


async def test_the_client_of_any_cloud_is_used_itself():
    class Odd:
        _client = 7

    credentials: Any = {"aws_access_key": "a", "aws_secret_key": "s"}
    bedrock = anthropic.AsyncAnthropicBedrock(aws_region="eu-central-1", **credentials)
    elsewhere = anthropic.AsyncAnthropic(base_url="http://127.0.0.1:9", api_key="k")
    for client in (bedrock, elsewhere):
        for asked in (client, client.beta):
            lent = find_agent_model(asked, {"model": "m"})
            assert lent is not None
            assert (lent.client, lent.anthropic_client, lent.name) == (client, client, "m")
    with anthropic.Anthropic(api_key="k") as synchronous:
        lent = find_agent_model(synchronous, {})
        assert lent is not None
        assert (lent.client, lent.anthropic_client) == (synchronous, None)
    for other in (None, Odd(), object(), "client"):
        assert find_agent_model(other, {}) is None


# Without a model ----------------------------------------------------------------------------------


def told(caplog: pytest.LogCaptureFixture) -> int:
    return sum(1 for record in caplog.records if WITHOUT_MODEL in record.getMessage())


@pytest.mark.parametrize(
    "summarize",
    [
        None,
        AgentSummarizer("m"),
        AnthropicSummarizer(),
        AnthropicSummarizer(model="m"),
    ],
)
async def test_without_a_model_a_session_warns_once_and_every_report_has_the_warning(
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


async def test_each_session_warns_separately(tmp_path, caplog):
    run = Run(tmp_path)

    for name in ("a", "b"):
        await run.pipeline.session(name).run(history())

    assert told(caplog) == 2


async def test_a_chosen_extractive_summarizer_gives_no_warning(tmp_path, caplog):
    run = Run(tmp_path, ExtractiveSummarizer())

    await run.pipeline.session("s").run(history())

    assert run.writers == ["ExtractiveSummarizer"]
    assert WITHOUT_MODEL not in run.details[0].warnings
    assert told(caplog) == 0


async def test_a_summarizer_without_a_pipeline_warns_too(caplog):
    await AnthropicSummarizer()(history())
    await AgentSummarizer()(history())

    assert told(caplog) == 2
