"""Every way to a compaction, with every vendor's key in the environment: who is sent what."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import pytest
from anyio import create_task_group, to_thread
from connections import STAGES, WINDOW, Agent, Compactions, chat_history, every_key, summaries
from mcp import ClientSession
from mcp.shared.memory import create_client_server_memory_streams
from sdks import needs_middleware

from ctxpipe import Budget, Compact, ContextPipeline, LocalStorage, offload_tools, presets, sync
from ctxpipe.adapters import claude_code
from ctxpipe.adapters.anthropic import (
    ctxpipe_client,
    ctxpipe_middleware,
    ctxpipe_sync_client,
    ctxpipe_sync_middleware,
)
from ctxpipe.adapters.mcp import offload_server
from ctxpipe.config import read_config
from ctxpipe.errors import SettingsError
from ctxpipe.functions import compact_messages
from ctxpipe.summarizers import (
    WITHOUT_MODEL,
    AgentSummarizer,
    AnthropicSummarizer,
    ExtractiveSummarizer,
    PromptSummarizer,
)
from ctxpipe.testing import MessagesServer

TURNS = 8
ASKED: Any = {"model": "m", "max_tokens": 99}


def warnings(caplog: pytest.LogCaptureFixture) -> int:
    return sum(WITHOUT_MODEL in record.getMessage() for record in caplog.records)


# A pipeline that is run by hand -------------------------------------------------------------------


@pytest.mark.parametrize("stages", STAGES)
async def test_a_pipeline_does_not_know_the_agents_model_and_asks_nobody(
    stages: str, tmp_path: Path, monkeypatch, caplog
):
    shaped = Compactions(stages, tmp_path)
    with every_key(monkeypatch) as noted:
        messages: list[Any] = []
        for message in chat_history(TURNS):
            messages = [*messages, message]
            if message["role"] == "user":
                result = await shaped.pipeline.run(messages, session_id="s")
                messages = result.messages

    assert shaped.were_written_by("", "ExtractiveSummarizer")
    assert all(detail.dollars == 0 for detail in shaped.details)
    assert not noted.addresses
    assert not noted.names
    assert warnings(caplog) == 1
    assert "Compact(AnthropicSummarizer(client), …)" in caplog.text


async def test_a_session_without_a_client_asks_nobody(tmp_path: Path, monkeypatch, caplog):
    shaped = Compactions("stage", tmp_path)
    with every_key(monkeypatch) as noted:
        session = shaped.pipeline.session("s")
        for turns in range(TURNS):
            await session.run(chat_history(turns))
        await session.compact(focus="the login bug")

    assert shaped.were_written_by("", "ExtractiveSummarizer")
    assert not noted.addresses
    assert warnings(caplog) == 1


async def test_a_compaction_that_the_model_asks_for_asks_nobody_else(tmp_path: Path, monkeypatch):
    shaped = Compactions("stage", tmp_path)
    session = shaped.pipeline.session("s")
    tools: dict[str, Any] = {tool.name: tool for tool in offload_tools(session)}
    with every_key(monkeypatch) as noted:
        await session.run(chat_history(3))
        await tools["compact_context"]({"focus": "the login bug"})
        await session.run(chat_history(4))

    [detail] = shaped.details
    assert detail.summarizer == "ExtractiveSummarizer"
    assert not noted.addresses


async def test_a_pipeline_in_a_file_asks_nobody(tmp_path: Path, monkeypatch):
    path = tmp_path / "pipeline.toml"
    path.write_text('[[stage]]\nuse = "Compact"\n')
    config = await to_thread.run_sync(read_config, path)
    stages = config.stages(LocalStorage(tmp_path))
    pipeline = ContextPipeline(stages, budget=Budget(window=WINDOW))
    with every_key(monkeypatch) as noted:
        result = await pipeline.run(chat_history(TURNS), session_id="s")

    detail: Any = result.reports[0].detail
    assert (result.changed, detail.summarizer) == (True, "ExtractiveSummarizer")
    assert not noted.addresses


def credentials(request: Any) -> tuple[object, object]:
    return request.headers.get("x-api-key"), request.headers.get("authorization")


# A client of Anthropic's SDK ----------------------------------------------------------------------


async def create(client: Any, shaped: Compactions):
    session = shaped.pipeline.session("s")
    async with client:
        for turns in range(TURNS):
            await session.create(client, messages=chat_history(turns), **ASKED)


async def stream(client: Any, shaped: Compactions):
    session = shaped.pipeline.session("s")
    async with client:
        for turns in range(TURNS):
            async with session.stream(client, messages=chat_history(turns), **ASKED) as opened:
                await opened.get_final_message()


async def run(client: Any, shaped: Compactions):
    session = shaped.pipeline.session("s")
    async with client:
        for turns in range(TURNS):
            given: Any = {"client": client, "request": {"model": "m"}}
            await session.run(chat_history(turns), **given)


async def create_in_thread(client: Any, shaped: Compactions):
    def work():
        session = sync.Session(shaped.pipeline, "s")
        for turns in range(TURNS):
            session.create(client, messages=chat_history(turns), **ASKED)
        sync.wait_for(client.close())

    await to_thread.run_sync(work)


async def ask_by_itself(client: Any, _shaped: Compactions):
    async with client:
        for turns in range(TURNS):
            await client.messages.create(messages=chat_history(turns), **ASKED)


async def ask_in_thread(client: Any, _shaped: Compactions):
    def work():
        with client:
            for turns in range(TURNS):
                client.messages.create(messages=chat_history(turns), **ASKED)

    await to_thread.run_sync(work)


def bare(_shaped: Compactions, **given: Any) -> Any:
    return anthropic.AsyncAnthropic(**given)


def with_middleware(shaped: Compactions, **given: Any) -> Any:
    return anthropic.AsyncAnthropic(
        middleware=[ctxpipe_middleware(shaped.pipeline, session_id="s")], **given
    )


def with_http_client(shaped: Compactions, **given: Any) -> Any:
    return anthropic.AsyncAnthropic(
        http_client=ctxpipe_client(shaped.pipeline, session_id="s"), **given
    )


def with_sync_middleware(shaped: Compactions, **given: Any) -> Any:
    return anthropic.Anthropic(
        middleware=[ctxpipe_sync_middleware(shaped.pipeline, session_id="s")], **given
    )


def with_sync_http_client(shaped: Compactions, **given: Any) -> Any:
    return anthropic.Anthropic(
        http_client=ctxpipe_sync_client(shaped.pipeline, session_id="s"), **given
    )


WAYS: list[Any] = [
    pytest.param(bare, create, id="create"),
    pytest.param(bare, stream, id="stream"),
    pytest.param(bare, run, id="run"),
    pytest.param(bare, create_in_thread, id="sync session"),
    pytest.param(with_middleware, ask_by_itself, id="middleware", marks=needs_middleware),
    pytest.param(with_http_client, ask_by_itself, id="http client"),
    pytest.param(with_sync_middleware, ask_in_thread, id="sync middleware", marks=needs_middleware),
    pytest.param(with_sync_http_client, ask_in_thread, id="sync http client"),
]


@pytest.mark.parametrize(("make", "work"), WAYS)
async def test_a_client_of_another_host_is_never_replaced_by_one_of_anthropics(
    make: Callable[..., Any], work: Callable[..., Any], tmp_path: Path, monkeypatch
):
    shaped = Compactions("stage", tmp_path)
    with every_key(monkeypatch) as noted:
        async with MessagesServer(Agent(rounds=0)) as server:
            noted.allow(server.url)
            # As of a proxy, or of a server on this machine.
            client = make(shaped, base_url=server.url, api_key="of the proxy")
            await work(client, shaped)

    assert shaped.were_written_by("m")
    assert not noted.foreign
    assert not server.refused
    assert {request.body["model"] for request in server.requests} == {"m"}
    assert len({credentials(request) for request in server.requests}) == 1


@pytest.mark.parametrize(("make", "work"), WAYS)
async def test_a_summarizer_without_a_client_uses_the_agents_own(
    make: Callable[..., Any], work: Callable[..., Any], tmp_path: Path, monkeypatch
):
    shaped = Compactions("stage", tmp_path)
    stage = Compact(AnthropicSummarizer(model="small"), archive=LocalStorage(tmp_path))
    shaped.pipeline = ContextPipeline(
        [stage], budget=shaped.pipeline.budget, on_report=shaped._note
    )
    with every_key(monkeypatch) as noted:
        async with MessagesServer(Agent(rounds=0)) as server:
            noted.allow(server.url)
            client = make(shaped, base_url=server.url, api_key="of the proxy")
            await work(client, shaped)

    assert {detail.model for detail in shaped.details} == {"small"}
    assert not noted.foreign
    assert {request.body["model"] for request in summaries(server.requests)} == {"small"}


# A choice of the caller's own ---------------------------------------------------------------------


async def test_who_names_anthropic_where_nothing_is_known_of_the_agent_has_it_asked(
    tmp_path: Path, monkeypatch
):
    stage = Compact(AnthropicSummarizer(model="m"), archive=LocalStorage(tmp_path))
    pipeline = ContextPipeline([stage], budget=Budget(window=WINDOW))
    with every_key(monkeypatch) as noted:
        async with MessagesServer(Agent(rounds=0)) as server:
            noted.allow(server.url)
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            await pipeline.run(chat_history(TURNS), session_id="s")

    assert len(server.requests) == 1
    assert not noted.foreign


async def test_the_function_of_the_requirements_asks_anthropic_as_its_page_says(
    tmp_path: Path, monkeypatch
):
    with every_key(monkeypatch) as noted:
        async with MessagesServer(Agent(rounds=0)) as server:
            noted.allow(server.url)
            monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
            result = await compact_messages(
                chat_history(TURNS), output_dir=tmp_path, context_token_limit=4_000
            )

    assert result.compacted
    assert server.requests[0].body["model"] == "claude-haiku-4-5-20251001"
    assert not noted.foreign


def test_a_preset_takes_a_summarizer_or_the_name_of_a_model(tmp_path: Path):
    storage = LocalStorage(tmp_path)

    async def ask(prompt: str) -> str:
        return prompt

    presets_made: list[Callable[..., Any]] = [
        partial(presets.coding_agent, storage, work_dir=None),
        partial(presets.chat, storage),
    ]
    choices: list[tuple[dict[str, Any], Any]] = [
        ({}, None),
        ({"summary_model": "small"}, AgentSummarizer("small")),
        ({"summarize": ExtractiveSummarizer()}, ExtractiveSummarizer()),
    ]
    for preset in presets_made:
        for given, summarizer in choices:
            [stage] = [stage for stage in preset(**given) if isinstance(stage, Compact)]
            assert stage.summarize == summarizer
        with pytest.raises(SettingsError, match="both given"):
            preset(summarize=PromptSummarizer(ask), summary_model="small")


def test_a_storage_in_the_place_of_the_summarizer_is_told_by_its_name(tmp_path: Path):
    with pytest.raises(SettingsError, match="give it as archive="):
        Compact(LocalStorage(tmp_path))  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="give it as archive="):
        Compact(LocalStorage(tmp_path), ExtractiveSummarizer())  # type: ignore[arg-type]


def test_a_path_in_the_place_of_the_summarizer_is_told_before_the_missing_archive():
    with pytest.raises(SettingsError, match=r"summarize is '\.ctxpipe'"):
        Compact(".ctxpipe")  # type: ignore[arg-type]


# What has no summaries ----------------------------------------------------------------------------


def test_the_hook_of_claude_code_sends_nothing(tmp_path: Path, monkeypatch, capsys):
    event = {
        "hook_event_name": "PostToolUse",
        "session_id": "s",
        "tool_use_id": "c1",
        "tool_name": "Bash",
        "cwd": str(tmp_path),
        "tool_response": {"stdout": "a line of a log\n" * 1_000},
    }
    raw = json.dumps(event).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=BytesIO(raw)))
    with every_key(monkeypatch) as noted:
        assert claude_code.main(["hook"]) == 0

    assert "offloaded" in capsys.readouterr().out
    assert not noted.addresses
    assert not noted.names


async def test_the_server_of_reading_tools_sends_nothing(tmp_path: Path, monkeypatch):
    storage = LocalStorage(tmp_path)
    [path] = await storage.write([("s/c1.md", "a line of a log\n" * 10)])
    server = offload_server(storage)
    with every_key(monkeypatch) as noted:
        async with (
            create_client_server_memory_streams() as (streams, (read, write)),
            create_task_group() as group,
        ):
            group.start_soon(server.run, read, write, server.create_initialization_options())
            async with ClientSession(*streams) as session:
                await session.initialize()
                answer = await session.call_tool("read_offloaded", {"path": path})
            group.cancel_scope.cancel()

    assert "a line of a log" in str(answer)
    assert not noted.addresses
