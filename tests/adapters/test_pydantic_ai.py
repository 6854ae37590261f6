"""The capability in pydantic-ai's own agent, with its own models, against loopback APIs."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from adapter_contract import AdapterContract, Done
from mounts import (
    CALLS,
    LINES,
    asking_a_sub_agent,
    compacting,
    offloading,
    placeholders,
    result,
    rounds,
)
from readme import run_adapter_program

from ctxpipe import BatchOffload, ContextPipeline, DirectOffload, LocalStorage, offload_tools
from ctxpipe.settings import EXAMPLE_MODEL
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.storage import JournalStorage
from ctxpipe.testing import MessagesServer, OpenAIServer, Received, Script, answer_with, tool_use

pytest.importorskip("pydantic_ai", reason="the extra ctxpipe[pydantic-ai] is not installed")

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturn,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from ctxpipe.adapters.pydantic_ai import Ctxpipe, PartMarks, PydanticCodec

every_api = pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
LIMITS: Any = {"conversation_id": "t"}


@asynccontextmanager
async def serve(
    api: str, script: Script, *, name: str = "", **settings: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """A server that follows *script*, and pydantic-ai's model for it, called *name*."""
    if api == "anthropic":
        async with (
            MessagesServer(script, **settings) as server,
            anthropic.AsyncAnthropic(base_url=server.url, api_key="k", max_retries=0) as client,
        ):
            thinking: Any = {"anthropic_thinking": {"type": "enabled", "budget_tokens": 1024}}
            if name:  # the named models think by themselves
                thinking = None
            provider = AnthropicProvider(anthropic_client=client)
            yield server, AnthropicModel(name or "m", provider=provider, settings=thinking)
        return
    async with (
        OpenAIServer(script, **settings) as other,
        openai.AsyncOpenAI(base_url=other.base_url, api_key="k", max_retries=0) as client,
    ):
        own = OpenAIProvider(openai_client=client)
        kind: Any = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
        yield other, kind(name or "gpt-5", provider=own)


class Report(BaseModel):
    """What an agent with a structured output says."""

    text: str


def agent(
    model: Any, pipeline: ContextPipeline, *, output_type: Any = str, **settings: Any
) -> Agent[None, Any]:
    looking = Agent(
        model,
        instructions="Be brief.",
        capabilities=[Ctxpipe(pipeline, **settings)],
        output_type=output_type,
    )

    @looking.tool_plain
    def look(number: int) -> str:
        """Looks."""
        return result(number)

    return looking


def returned(messages: list[Any]) -> list[Any]:
    parts = [part for message in messages for part in message.parts]
    return [part for part in parts if isinstance(part, ToolReturnPart)]


class TestContract(AdapterContract):
    """pydantic-ai's agent, with each of its models."""

    serve = staticmethod(serve)  # type: ignore[assignment]

    async def run(
        self,
        api: str,
        reached: Any,
        pipeline: ContextPipeline,
        *,
        history: Any = None,
        journal: JournalStorage | None = None,
        stream: bool = False,
    ) -> Done:
        looking = agent(reached, pipeline, journal=journal)
        given: Any = {"message_history": history, "conversation_id": "t"}
        task = "go" if history is None else None
        if stream:
            async with looking.run_stream(task, **given) as streamed:
                said, messages = await streamed.get_output(), streamed.all_messages()
        else:
            done = await looking.run(task, **given)
            said, messages = done.output, done.all_messages()
        return Done(said, [part.content for part in returned(messages)], messages[:-1])

    def sent(self, received: Received) -> Any:
        return received.body


async def test_a_sub_agent_does_not_disturb(tmp_path):
    async with serve("chat", asking_a_sub_agent(1)) as (server, model):
        shaping = Ctxpipe(offloading(tmp_path), session_id="s")
        sub = Agent(model, instructions="Be brief.", capabilities=[shaping])
        main = Agent(model, instructions="Be brief.", capabilities=[shaping])

        @main.tool_plain
        async def ask(question: str) -> str:
            """Asks."""
            return (await sub.run(question)).output

        for each in (main, sub):
            each.tool_plain(look)
        await main.run("go")

    assert not server.refused
    assert [placeholders(request) for request in server.requests] == [0, 1, 0, 1, 2, 3, 1, 2]


def look(number: int) -> str:
    """Looks."""
    return result(number)


async def test_what_was_offloaded_stays_out_of_runs_with_structured_outputs(tmp_path):
    """pydantic-ai ends such a run with a result of its own, which the next run's prompt joins."""
    script = []
    for run in range(30):
        script.append(answer_with(tool_use("look", {"number": run}, id=f"c{run}")))
        script.append(answer_with(tool_use("final_result", {"text": "So."}, id=f"f{run}")))
    async with serve("chat", script) as (server, model):
        settings: Any = {"output_type": Report, "journal": LocalStorage(tmp_path)}
        looking = agent(model, offloading(tmp_path), **settings)
        kept: bytes | None = None
        for run in range(30):
            if run == 15:  # as in another process
                looking = agent(model, offloading(tmp_path), **settings)
            history = None if kept is None else ModelMessagesTypeAdapter.validate_json(kept)
            done = await looking.run(f"day {run}?", message_history=history, **LIMITS)
            kept = done.all_messages_json()

    assert not server.refused
    assert placeholders(server.requests[-1]) == 30
    assert not any(LINES[:100] in request.raw.decode() for request in server.requests)


# Beside it ----------------------------------------------------------------------------------------


async def test_another_error_is_raised(tmp_path):
    from ctxpipe.testing import server_error

    async with serve("chat", [server_error()]) as (server, model):
        with pytest.raises(Exception, match="Internal server error"):
            await agent(model, compacting(tmp_path)).run("go", **LIMITS)

    assert len(server.requests) == 1


# Cache breakpoints --------------------------------------------------------------------------------

MARKED_MODELS = {"chat": "gpt-5.6", "responses": "gpt-5.6", "anthropic": EXAMPLE_MODEL}


def looks(number: int = CALLS) -> list[Any]:
    """Replies with one call each, and then a last word."""
    calls = [tool_use("look", {"number": turn}, id=f"c{turn}") for turn in range(number)]
    return [*map(answer_with, calls), "Done."]


def rewriting(folder: Path) -> ContextPipeline:
    """A pipeline that moves one old result to a file in each turn, all but the last two."""
    return ContextPipeline([BatchOffload(LocalStorage(folder), RatioGate(0.2), keep_recent=2)])


def marked_places(received: Received) -> list[int]:
    """The places of the items of a request that have a breakpoint."""
    body: Any = received.body
    items = body["input"] if "input" in body else body["messages"]
    texts = [json.dumps(item) for item in items]
    marks = ("prompt_cache_breakpoint", "cache_control")
    return [place for place, text in enumerate(texts) if any(mark in text for mark in marks)]


@every_api
async def test_what_a_turn_has_rewritten_is_between_two_breakpoints(tmp_path, api: str):
    async with serve(api, looks(), name=MARKED_MODELS[api]) as (server, model):
        looking = agent(model, rewriting(tmp_path), cache_breakpoints=4)
        done = await looking.run("go", **LIMITS)

    assert not server.refused
    first = 1 if api == "chat" else 0  # after the instructions
    for number, request in enumerate(server.requests):
        places = marked_places(request)
        if api == "anthropic":  # OpenAI itself has a breakpoint at the end of each prompt
            assert places.pop() == 2 * number
        # From the fourth request on, one more of the old results has left in each.
        if number >= 3:
            assert places == [first + 2 * (number - 3), first + 2 * (number - 2)]
        elif api != "anthropic":
            assert not places
    assert "cache-point" not in done.all_messages_json().decode()


@every_api
@pytest.mark.parametrize("breakpoints", [0, 4])
async def test_models_without_breakpoints_get_none(tmp_path, api: str, breakpoints: int):
    async with serve(api, looks(), name="" if api == "anthropic" else "gpt-4o") as (
        server,
        model,
    ):
        await agent(model, rewriting(tmp_path), cache_breakpoints=breakpoints).run("go", **LIMITS)

    assert not any(marked_places(request) for request in server.requests)


async def test_beside_pydantic_ais_own_caching_only_what_was_rewritten_is_marked(tmp_path):
    async with serve("anthropic", looks(), name=MARKED_MODELS["anthropic"]) as (server, model):
        looking = agent(model, rewriting(tmp_path), cache_breakpoints=4)
        await looking.run("go", model_settings={"cache": True}, **LIMITS)

    assert not server.refused
    assert all(request.body["cache_control"] for request in server.requests)
    counts = [len(marked_places(request)) for request in server.requests]
    # The system prompt, the tools and the end have three of the four breakpoints.
    assert set(counts) == {0, 1}


def test_a_cache_point_of_the_user_is_kept_and_is_no_rewriting():
    marks = PartMarks()
    plain = with_content("Look at this.")
    marked = with_content(["Look at this.", CachePoint()])
    prompt = marked.parts[-1]

    assert marks.has_mark(marked)
    assert marks.without_marks(marked).parts[-1].content == ["Look at this."]
    assert marks.without_marks(plain) is plain
    assert prompt.content[-1] == CachePoint()


# Messages -----------------------------------------------------------------------------------------


def messages() -> list[Any]:
    picture = BinaryContent(b"\x89PNG", media_type="image/png")
    return [
        ModelRequest(parts=[UserPromptPart(["see", picture])]),
        ModelResponse(
            parts=[
                ThinkingPart("hm", signature="S"),
                ToolCallPart("look", '{"number": 1}', "c1", id="fc_1"),
                ToolCallPart("look", {"number": 2}, "c2"),
            ]
        ),
        ModelRequest(
            parts=[
                ToolReturnPart("look", result(1), "c1", metadata={"a": 1}),
                ToolReturnPart("look", "wrong", "c2", outcome="retried"),
                UserPromptPart("and this"),
            ]
        ),
        ModelResponse(parts=[TextPart("So.")]),
        ModelRequest(parts=[UserPromptPart("on")]),
    ]


def test_a_changed_result_keeps_its_metadata_and_its_neighbours():
    given = messages()[2]
    blocks = [dict(block) for block in PydanticCodec().read(given).blocks]
    blocks[0]["content"] = "[offloaded]"

    changed = PydanticCodec().rebuild(given, blocks)

    assert (changed.parts[0].content, changed.parts[0].metadata) == ("[offloaded]", {"a": 1})
    assert changed.parts[1:] == given.parts[1:]
    assert given.parts[0].content == result(1)


def test_a_changed_call_loses_its_id():
    given = messages()[1]
    blocks = [dict(block) for block in PydanticCodec().read(given).blocks]
    blocks[1]["input"] = {"number": "[offloaded]"}

    changed = PydanticCodec().rebuild(given, blocks)

    assert changed.parts[1].args == '{"number":"[offloaded]"}'
    assert changed.parts[1].id is None
    assert changed.parts[0] is given.parts[0]
    assert changed.parts[2] is given.parts[2]


def test_a_call_that_left_is_gone_alone():
    given = messages()[1]
    blocks = PydanticCodec().read(given).blocks

    changed = PydanticCodec().rebuild(given, [blocks[0], blocks[2]])

    assert changed.parts == [given.parts[0], given.parts[2]]


def with_content(*contents: Any) -> ModelRequest:
    """What two tools have returned, and what they have given beside it."""
    returns = [ToolReturnPart("look", "done", "c1"), ToolReturnPart("look", "ok", "c2")]
    return ModelRequest(parts=[*returns, *map(UserPromptPart, contents)])


def test_a_long_text_beside_a_return_is_part_of_the_result():
    page = "a line of a page\n" * 200
    given = with_content(page)

    reading = PydanticCodec().read(given)

    assert reading.side == "result"
    assert [block["content"] for block in reading.blocks] == [
        "done",
        [{"type": "text", "text": "ok"}, {"type": "text", "text": page}],
    ]
    changed = PydanticCodec().rebuild(
        given, [reading.blocks[0], {**reading.blocks[1], "content": "[offloaded]"}]
    )
    assert [part.content for part in changed.parts] == ["done", "[offloaded]"]
    untouched = PydanticCodec().rebuild(
        given, [{**reading.blocks[0], "content": "[offloaded]"}, reading.blocks[1]]
    )
    assert [part.content for part in untouched.parts] == ["[offloaded]", "ok", page]
    assert untouched.parts[2] is given.parts[2]


@pytest.mark.parametrize(
    "content", ["and this", ["see", BinaryContent(b"x" * 9_000, media_type="image/png")]]
)
def test_what_a_user_says_beside_results_stays_the_users(content):
    blocks = PydanticCodec().read(with_content(content)).blocks

    assert [block["type"] for block in blocks][:3] == ["tool_result", "tool_result", "text"]


def test_a_picture_that_has_left_a_return_is_sent_no_more():
    picture = BinaryContent(b"x" * 9_000, media_type="image/png")
    given = ModelRequest(parts=[ToolReturnPart("look", ["seen", picture], "c1")])
    [block] = PydanticCodec().read(given).blocks
    assert [part["type"] for part in block["content"]] == ["text", "image"]
    note = {"type": "text", "text": "[Image (image/png) offloaded to file: a.md]"}

    changed = PydanticCodec().rebuild(given, [{**block, "content": [block["content"][0], note]}])

    assert changed.parts[0].content == f"seen\n{note['text']}"


@pytest.mark.parametrize(
    ("own_id", "signature"), [("reasoning_content", "unsigned"), ("rs_1", "rs_1")]
)
def test_thinking_of_chat_completions_is_unsigned(own_id: str, signature: str):
    reply = ModelResponse(parts=[ThinkingPart("hm", id=own_id), TextPart("So.")])

    assert PydanticCodec().read(reply).blocks[0]["signature"] == signature


async def test_long_contents_of_tool_returns_leave_for_files(tmp_path):
    def look(number: int) -> ToolReturn:
        page = "".join(f"page {number}, line {line}\n" for line in range(900))
        return ToolReturn("seen", content=page)

    sizes: list[int] = []

    def model(history: list[Any], info: Any) -> ModelResponse:
        parts = [part for message in history for part in message.parts]
        sizes.append(sum(len(str(getattr(part, "content", ""))) for part in parts))
        number = len(sizes)
        if number > 6:
            return ModelResponse(parts=[TextPart("So.")])
        return ModelResponse(parts=[ToolCallPart("look", {"number": number}, f"c{number}")])

    pipeline = ContextPipeline([DirectOffload(LocalStorage(tmp_path))])
    agent = Agent(FunctionModel(model), tools=[look], capabilities=[Ctxpipe(pipeline)])

    await agent.run("Look.")

    assert sizes[-1] < 3_000


# The row of the README --------------------------------------------------------------------------


@every_api
async def test_the_program_of_the_page_sends_placeholders(tmp_path, api: str):
    async with serve(api, rounds()) as (server, model):
        names = run_adapter_program("pydantic-ai", offloading(tmp_path), model=model, tools=[look])
        done = await names["agent"].run("go", **LIMITS)

    assert not server.refused
    assert placeholders(server.requests[-1]) == CALLS
    assert done.output == "Done."


@every_api
@pytest.mark.parametrize("arguments", [{"path": "/not/the/path.md"}, {}, {"path": 5, "offset": []}])
async def test_no_call_of_a_reading_tool_ends_the_run(tmp_path, api: str, arguments):
    from examples.adapters.pydantic_ai_agent import by_schema

    readers = offload_tools(LocalStorage(tmp_path))
    calls = [tool_use(reader.name, arguments, id=f"c{n}") for n, reader in enumerate(readers)]
    async with serve(api, [answer_with(*calls), "Done."]) as (server, model):
        tools = [by_schema(reader) for reader in readers]
        shaping = Ctxpipe(offloading(tmp_path))
        done = await Agent(model, tools=tools, capabilities=[shaping]).run("go")
    assert done.output == "Done."
    assert not server.refused
