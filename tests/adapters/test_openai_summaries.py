"""Who writes the summaries of an agent on OpenAI's SDK, with every vendor's key around."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
from anyio import to_thread
from connections import STAGES, Agent, Compactions, every_key, is_about_a_summary, summaries
from mounts import result
from recorded import in_turn
from sdks import responses_of

from ctxpipe import Compact, ContextPipeline, LocalStorage
from ctxpipe.adapters.openai import ctxpipe_client, ctxpipe_sync_client
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.summarizers import AgentSummarizer, AnthropicSummarizer, Retry
from ctxpipe.summarizers.agent import OTHER_API
from ctxpipe.testing import OpenAIServer, RequestBody, answer_with, server_error, tool_use

APIS = ["chat", "responses"]
every_api = pytest.mark.parametrize("api", APIS)
TOOL: Any = {"name": "look", "parameters": {"type": "object", "properties": {}}}


def calls_of(api: str, reply: Any) -> tuple[list[Any], list[Any]]:
    """What *reply* says, as items, and the results of the calls in it."""
    if api == "chat":
        message = reply.choices[0].message
        said = [message.model_dump(exclude_none=True)]
        calls = message.tool_calls or []
        return said, [
            {"role": "tool", "tool_call_id": call.id, "content": result(number)}
            for number, call in enumerate(calls)
        ]
    said = [item.model_dump(exclude_none=True) for item in reply.output]
    return said, [
        {"type": "function_call_output", "call_id": item["call_id"], "output": result(1)}
        for item in said
        if item["type"] == "function_call"
    ]


def request_of(api: str, history: list[Any], options: dict[str, Any]) -> dict[str, Any]:
    if api == "chat":
        tools = [{"type": "function", "function": TOOL}]
        return {"model": "m", "messages": history, "tools": tools, **options}
    return {"model": "m", "input": history, "tools": [{"type": "function", **TOOL}], **options}


async def work(client: openai.AsyncOpenAI, api: str, **options: Any):
    """An agent's loop, which the caller of the SDK runs."""
    history: list[Any] = [{"role": "user", "content": "go"}]
    while True:
        create: Any = client.chat.completions.create
        if api == "responses":
            create = responses_of(client).create
        said, results = calls_of(api, await create(**request_of(api, history, options)))
        history += [*said, *results]
        if not results:
            return


def work_in_thread(client: openai.OpenAI, api: str):
    history: list[Any] = [{"role": "user", "content": "go"}]
    while True:
        create: Any = client.chat.completions.create
        if api == "responses":
            create = responses_of(client).create
        said, results = calls_of(api, create(**request_of(api, history, {})))
        history += [*said, *results]
        if not results:
            return


@pytest.mark.parametrize(("stages", "api"), in_turn(STAGES, last=APIS))
async def test_the_agents_own_api_and_no_other_vendor_is_asked_for_summaries(
    api: str, stages: str, tmp_path: Path, monkeypatch
):
    shaped = Compactions(stages, tmp_path)
    with every_key(monkeypatch) as noted:
        async with OpenAIServer(Agent()) as server:
            noted.allow(server.url)
            http = ctxpipe_client(shaped.pipeline, session_id="s")
            async with openai.AsyncOpenAI(base_url=server.base_url, http_client=http) as client:
                await work(client, api)

    assert shaped.were_written_by("m")
    assert not noted.foreign
    asked = summaries(server.requests)
    assert len(asked) >= len(shaped.details)
    for request in asked:
        assert request.body["model"] == "m"
        assert request.headers["authorization"] == "Bearer key-of-openai_api_key"
    assert not server.refused


@every_api
async def test_a_synchronous_client_is_asked_too(api: str, tmp_path: Path, monkeypatch):
    shaped = Compactions("stage", tmp_path)

    def run(url: str):
        http = ctxpipe_sync_client(shaped.pipeline, session_id="s")
        with openai.OpenAI(base_url=url, http_client=http) as client:
            work_in_thread(client, api)

    with every_key(monkeypatch) as noted:
        async with OpenAIServer(Agent()) as server:
            noted.allow(server.url)
            await to_thread.run_sync(run, server.base_url)

    assert shaped.were_written_by("m")
    assert not noted.foreign


@pytest.mark.parametrize(
    ("named_by", "api"), in_turn(["adapter", "preset", "environment"], last=APIS)
)
async def test_another_model_of_the_same_api_can_be_named(
    api: str, named_by: str, tmp_path: Path, monkeypatch
):
    settings: Any = {"summary_model": "small"} if named_by == "preset" else {}
    shaped = Compactions("coding", tmp_path, **settings)
    settings = {"summary_model": "small"} if named_by == "adapter" else {}
    with every_key(monkeypatch) as noted:
        if named_by == "environment":
            monkeypatch.setenv("SUMMARY_MODEL", "small")
        async with OpenAIServer(Agent()) as server:
            noted.allow(server.url)
            http = ctxpipe_client(shaped.pipeline, session_id="s", **settings)
            async with openai.AsyncOpenAI(base_url=server.base_url, http_client=http) as client:
                await work(client, api)

    assert shaped.were_written_by("small")
    assert not noted.foreign
    assert {request.body["model"] for request in summaries(server.requests)} == {"small"}


@every_api
async def test_a_question_repeats_where_and_for_whom_a_request_is_and_nothing_that_it_asks(
    api: str, tmp_path: Path, monkeypatch
):
    shaped = Compactions("stage", tmp_path)
    options = {"user": "u-1", "store": False, "extra_headers": {"x-route": "eu"}, "top_p": 0.5}
    with every_key(monkeypatch) as noted:
        async with OpenAIServer(Agent()) as server:
            noted.allow(server.url)
            http = ctxpipe_client(shaped.pipeline, session_id="s")
            async with openai.AsyncOpenAI(base_url=server.base_url, http_client=http) as client:
                await work(client, api, **options)

    for request in summaries(server.requests):
        assert request.headers["x-route"] == "eu"
        key = "messages" if api == "chat" else "input"
        body: Any = request.body
        assert set(body) == {"model", "user", "store", key}
        assert (body["user"], body["store"], len(body[key])) == ("u-1", False, 1)


async def test_a_summarizer_of_another_vendor_without_a_client_asks_nobody(
    tmp_path: Path, monkeypatch, caplog
):
    shaped = Compactions("stage", tmp_path)
    shaped.pipeline = ContextPipeline(
        [Compact(AnthropicSummarizer(), archive=LocalStorage(tmp_path))],
        budget=shaped.pipeline.budget,
        on_report=shaped._note,
    )
    with every_key(monkeypatch) as noted:
        async with OpenAIServer(Agent()) as server:
            noted.allow(server.url)
            http = ctxpipe_client(shaped.pipeline, session_id="s")
            async with openai.AsyncOpenAI(base_url=server.base_url, http_client=http) as client:
                await work(client, "chat")

    assert shaped.were_written_by("", "ExtractiveSummarizer")
    assert not noted.foreign
    assert not summaries(server.requests)
    told = [record for record in caplog.records if OTHER_API in record.getMessage()]
    assert len(told) == 1


async def test_a_focus_is_given_to_the_agents_own_model(tmp_path: Path, monkeypatch):
    shaped = Compactions("stage", tmp_path, window=6_000)
    with every_key(monkeypatch) as noted:
        async with OpenAIServer(Agent(rounds=2)) as server:
            noted.allow(server.url)
            http = ctxpipe_client(shaped.pipeline, session_id="s")
            async with openai.AsyncOpenAI(base_url=server.base_url, http_client=http) as client:
                await work(client, "chat")
                session = shaped.pipeline.session("s")
                await session.compact(focus="the login bug")

    [request] = summaries(server.requests)
    assert "the login bug" in json.dumps(request.body)
    assert not noted.foreign


@pytest.mark.parametrize("failures", [1, 9])
async def test_an_error_of_the_api_is_tried_again_by_the_one_retry_layer(
    failures: int, tmp_path: Path, monkeypatch
):
    asked: list[RequestBody] = []

    async def no_sleep(_seconds: float):
        """No wait between two attempts."""

    def script(body: RequestBody) -> Any:
        if not is_about_a_summary(body):
            done = sum("tool_call_id" in item for item in body["messages"])
            return "Done." if done > 3 else answer_with(tool_use("look", {}, id=f"c{done}"))
        asked.append(body)
        return server_error() if len(asked) <= failures else "## Task Status\nAll is well."

    breaker = Breaker(Retry(sleep=no_sleep))
    stage = Compact(AgentSummarizer(), archive=LocalStorage(tmp_path), breaker=breaker)
    pipeline = ContextPipeline([stage])
    with every_key(monkeypatch) as noted:
        async with OpenAIServer(script) as server:
            noted.allow(server.url)
            http = ctxpipe_client(pipeline, session_id="s")
            async with openai.AsyncOpenAI(base_url=server.base_url, http_client=http) as client:
                await work(client, "chat")
                compacted = await pipeline.session("s").compact()

    [report] = compacted.reports
    assert len(asked) == min(failures + 1, 3)
    if failures == 1:
        assert report.outcome == "changed"
    else:
        assert "status 500" in report.reason
