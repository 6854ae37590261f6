"""The warning that what has left the context cannot be opened by the model."""

from __future__ import annotations

import logging
from typing import Any

import openai
import pytest
from histories import conversation, step, user
from in_memory import in_memory, messages_api

from ctxpipe import ContextPipeline, DirectOffload, LocalStorage, MemoryStorage, offload_tools
from ctxpipe.adapters.openai import ctxpipe_client
from ctxpipe.diagnostics import reader_watch
from ctxpipe.diagnostics.reader_watch import can_open
from ctxpipe.testing import MessagesServer, OpenAIServer, answer_with

LONG = "a long line of output\n" * 2000
LOOK: dict[str, Any] = {
    "name": "look",
    "description": "Looks at the sky.",
    "input_schema": {"type": "object", "properties": {"direction": {"type": "string"}}},
}


@pytest.fixture(autouse=True)
def _a_process_that_has_not_warned(caplog: pytest.LogCaptureFixture):
    # asyncio warns of slow steps, on a busy machine. The last level is also the handler's.
    caplog.set_level(logging.ERROR, "asyncio")
    caplog.set_level(logging.WARNING, "ctxpipe")
    reader_watch._warn.cache_clear()


async def ask(storage: LocalStorage | MemoryStorage, tools: list[Any], name: str = "s") -> None:
    """Send a request whose only result leaves the context."""
    session = ContextPipeline([DirectOffload(storage)]).session(name)
    history = conversation(user("go"), step("t1", "look", result=LONG))
    async with messages_api(MessagesServer(lambda _: answer_with("ok"))) as (server, client):
        await session.create(client, messages=history, model="m", max_tokens=99, tools=tools)
    assert LONG not in server.requests[-1].raw.decode()


async def test_a_model_without_a_reading_tool_gives_one_warning_in_a_process(tmp_path, caplog):
    storage = LocalStorage(tmp_path)

    await ask(storage, [LOOK], "one")
    await ask(storage, [LOOK], "two")

    [record] = caplog.records
    assert record.getMessage() == (
        "no tool of the request can open the files behind placeholders: "
        "add offload_tools(session), or offload_tools(storage), to the tools of the model"
    )


async def test_the_reading_tools_open_everything(tmp_path, caplog):
    for storage in (LocalStorage(tmp_path), MemoryStorage()):
        tools = [tool.definition for tool in offload_tools(storage)]

        await ask(storage, [LOOK, *tools])

    assert not caplog.records


async def test_a_shell_opens_files_but_no_urls(tmp_path, caplog):
    shell = {**LOOK, "name": "bash"}

    await ask(LocalStorage(tmp_path), [shell])
    assert not caplog.records

    await ask(MemoryStorage(), [shell])
    assert "add offload_tools(session)" in caplog.text


async def test_without_a_list_of_tools_no_warning_is_given(tmp_path, caplog):
    session = ContextPipeline([DirectOffload(LocalStorage(tmp_path))]).session("s")

    await session.run(conversation(user("go"), step("t1", "look", result=LONG)))

    assert not caplog.records


@pytest.mark.parametrize("has_reader", [False, True])
async def test_a_client_of_another_api_gives_the_same_warning(tmp_path, caplog, has_reader):
    storage = LocalStorage(tmp_path)
    pipeline = ContextPipeline([DirectOffload(storage)])
    function = {"name": "look", "arguments": "{}"}
    definitions = [LOOK]
    if has_reader:
        definitions += [dict(tool.definition) for tool in offload_tools(storage)]
    tools: list[Any] = []
    for definition in definitions:
        schema = {"name": definition["name"], "parameters": definition["input_schema"]}
        tools.append({"type": "function", "function": schema})
    messages: list[Any] = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": LONG},
    ]
    server = OpenAIServer(lambda _: answer_with("ok"))
    async with (
        in_memory(server) as transport,
        openai.AsyncOpenAI(
            base_url=server.base_url,
            api_key="test",
            http_client=ctxpipe_client(pipeline, transport=transport),
        ) as client,
    ):
        await client.chat.completions.create(model="m", messages=messages, tools=tools)

    assert LONG not in server.requests[-1].raw.decode()
    assert bool(caplog.records) is not has_reader


@pytest.mark.parametrize(
    ("tool", "opens"),
    [
        (LOOK, False),
        ({**LOOK, "name": "mcp__ctxpipe__read_offloaded"}, True),
        ({"type": "mcp", "server_label": "ctxpipe"}, True),
        ({"type": "bash_20250124", "name": "bash"}, True),
        ({"type": "local_shell"}, True),
        ({"type": "web_search_20250305", "name": "web_search"}, False),
        ({"name": "show", "input_schema": {"properties": {"file_path": {}}}}, True),
        ({"name": "Read", "input_schema": {}}, True),
        ({"name": "odd", "input_schema": "none"}, False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_tool_opens_files_by_its_name_and_its_input(tool: object, opens: bool):
    assert can_open(tool, is_url=False) is opens
