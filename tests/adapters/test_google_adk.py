"""Agents of Google's ADK, whose own models find the gateway by the environment."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from gateways import key, serving

from ctxpipe.testing import GeminiServer, Model, Reply, answer_with, tool_use

pytest.importorskip("google.adk", reason="google-adk is not installed")

from google.adk.agents import Agent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.runners import InMemoryRunner
from google.genai import types

# What the framework warns of is its own; that a coroutine was not awaited is an error.
pytestmark = pytest.mark.filterwarnings("ignore", "error::RuntimeWarning")

TURNS = 30
LINE = "a line of the result\n"


def look(number: int) -> str:
    """Look at something."""
    return f"result {number}\n{LINE * 600}"


def rounds(turns: int = TURNS) -> list[Reply]:
    """A call in each turn, and a last word."""
    return [*(answer_with(tool_use("look", {"number": n})) for n in range(turns)), "Done."]


@asynccontextmanager
async def connect(api: GeminiServer, folder: Path, **more: Any) -> AsyncIterator[Any]:
    """A runner of an agent with a session, whose model asks through a gateway before *api*."""
    with pytest.MonkeyPatch.context() as patch:
        async with serving(api.url, folder) as gateway:
            patch.setenv("GOOGLE_API_KEY", key())
            patch.setenv("GOOGLE_GEMINI_BASE_URL", gateway.url)
            agent = Agent(name="looker", model="gemini-3-pro-preview", tools=[look], **more)
            runner = InMemoryRunner(agent, app_name="app")
            await runner.session_service.create_session(app_name="app", user_id="u", session_id="s")
            try:
                yield runner
            finally:
                await runner.close()


async def run(runner: Any, words: str, *, stream: bool = False) -> str:
    """The last words of the agent."""
    config = RunConfig(streaming_mode=StreamingMode.SSE if stream else StreamingMode.NONE)
    said = ""
    message = types.Content(role="user", parts=[types.Part(text=words)])
    async for event in runner.run_async(
        user_id="u", session_id="s", new_message=message, run_config=config
    ):
        if event.is_final_response() and event.content is not None:
            said = "".join(part.text or "" for part in event.content.parts)
    return said


def parts_of(request: Any) -> list[dict[str, Any]]:
    return [part for content in request.body["contents"] for part in content["parts"]]


every_way = pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])


@every_way
async def test_the_results_of_rounds_go_to_files_and_the_prefix_stays(tmp_path: Path, stream: bool):
    async with GeminiServer(rounds()) as api, connect(api, tmp_path) as runner:
        said = await run(runner, "go", stream=stream)

    sent = [parts_of(request) for request in api.requests]
    assert said == "Done."
    assert api.refused == []
    assert all(after[: len(before)] == before for before, after in pairwise(sent))
    assert api.requests[-1].raw.count(b"offloaded to") == TURNS


@every_way
async def test_the_callers_history_stays_whole_with_each_signature(tmp_path: Path, stream: bool):
    async with GeminiServer(rounds(3)) as api, connect(api, tmp_path) as runner:
        await run(runner, "go", stream=stream)
        session = await runner.session_service.get_session(
            app_name="app", user_id="u", session_id="s"
        )

    assert api.refused == []
    events = [str(event.content) for event in session.events]
    assert sum(text.count(LINE.strip()) for text in events) == 3 * 600
    assert sum("thought before look" in text for text in events) == 3


async def test_after_too_long_a_shorter_request_is_sent(tmp_path: Path):
    script = ["ok"] * 12 + ["fine"]
    async with (
        GeminiServer(script, model=Model(window=9_500)) as api,
        connect(api, tmp_path) as runner,
    ):
        for number in range(12):
            await run(runner, f"{number} " + "some words of the user " * 150)
        said = await run(runner, "some words of the user " * 300)

    assert said == "fine"
    assert len(api.refused) == 1


async def test_what_a_transfer_tells_the_new_agent_stays_in_files(tmp_path: Path):
    """The framework prints the results so far into messages of the user."""

    def script(request: Any) -> Reply:
        number = len(api.requests) - 1
        if number == 8:
            return answer_with(tool_use("transfer_to_agent", {"agent_name": "helper"}))
        return answer_with(tool_use("look", {"number": number})) if number < 12 else "Done."

    helper = Agent(name="helper", model="gemini-3-pro-preview", tools=[look], description="helps")
    api = GeminiServer(script)
    async with api, connect(api, tmp_path, sub_agents=[helper]) as runner:
        said = await run(runner, "go")

    assert said == "Done."
    before, after = api.requests[8:10]
    assert after.tokens < 2.5 * before.tokens  # the framework's own words about each result
    told = str(api.requests[-1].body)
    assert LINE * 600 not in told
    assert repr(LINE * 600)[1:-1] not in told
    bodies: list[Any] = [request.body for request in api.requests[9:]]
    for one, other in pairwise(bodies):
        assert other["contents"][: len(one["contents"])] == one["contents"]
