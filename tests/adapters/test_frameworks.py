"""The HTTP client in agents of frameworks on the openai SDK, each made by its section of the page.

The server is on a socket. Only the frameworks that are installed are run.
"""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from typing import Any

import openai
import pytest
from adapter_contract import Done, LongContract
from frameworks.framework import Framework, Job, Report, look, run_page_section
from mounts import dicts_of, items_of, offloading, placeholders, rounds

from ctxpipe import ContextPipeline, LocalStorage, offload_tools
from ctxpipe.adapters.openai import ctxpipe_client, ctxpipe_sync_client
from ctxpipe.storage import JournalStorage
from ctxpipe.testing import OpenAIServer, Reply, Script, answer_with, tool_use

DRIVERS = {
    "openai-agents": "openai_agents.OpenAIAgents",
    "crewai": "crew_ai.CrewAI",
    "llama-index-core": "llama_index.LlamaIndex",
    "autogen-agentchat": "autogen.AutoGen",
    "agent-framework-openai": "agent_framework_agents.AgentFramework",
    "strands-agents": "strands_agents.Strands",
    "haystack-ai": "haystack_agents.Haystack",
    "ag2": "ag2_agents.AG2",
}
"""The class that runs the agent of a package."""


def installed_frameworks() -> Iterator[Framework]:
    for package, driver in DRIVERS.items():
        try:
            distribution(package)
        except PackageNotFoundError:
            continue
        module, _, name = driver.partition(".")
        with warnings.catch_warnings(action="ignore"):
            yield getattr(import_module(f"frameworks.{module}"), name)()


FRAMEWORKS = {f"{one.package}-{api}": one for one in installed_frameworks() for api in one.apis}
if not FRAMEWORKS:
    pytest.skip("no framework on the openai SDK is installed", allow_module_level=True)

# What a framework warns of is its own; that a coroutine was not awaited is an error.
pytestmark = pytest.mark.filterwarnings("ignore", "error::RuntimeWarning")


@pytest.fixture
def anyio_backend() -> str:
    """No debug mode: it would be the frameworks' own code that is watched, at twice the time."""
    return "asyncio"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch):
    """What the SDK takes from the environment of a user."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")


@asynccontextmanager
async def serve(script: Script, **settings: Any) -> AsyncIterator[tuple[OpenAIServer, str]]:
    """A server that follows *script*, which the SDK finds by the environment."""
    async with OpenAIServer(script, **settings) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENAI_BASE_URL", server.base_url)
            patch.setenv("OPENAI_API_BASE", server.base_url)  # LlamaIndex's own name
            yield server, server.base_url


async def run(
    name: str, pipeline: ContextPipeline, job: Job, *, journal: JournalStorage | None = None
) -> Done:
    """The *job*, done by the framework and the API of this *name*, in a process of its own."""
    framework = FRAMEWORKS[name]
    given: Any = {"session_id": "t", "journal": journal}
    http_client = ctxpipe_client(pipeline, **given)
    sync_http_client = ctxpipe_sync_client(pipeline, **given)
    async with openai.AsyncOpenAI(http_client=http_client, max_retries=0) as client:
        with openai.OpenAI(http_client=sync_http_client, max_retries=0) as sync_client:
            clients = {"http_client": http_client, "client": client, "sync_client": sync_client}
            made = run_page_section(framework.name, clients)
            return await framework.run(made[api_of(name)], job)


def api_of(name: str) -> str:
    return name.rpartition("-")[2]


class TestContract(LongContract):
    """What every adapter promises, in the agents of the frameworks."""

    apis = streams = tuple(FRAMEWORKS)
    adds_prompt = True

    def form(self, api: str) -> str:
        return api_of(api) if FRAMEWORKS[api].keeps_thoughts else "chat"

    def serve(self, api: str, script: Script, **settings: Any) -> Any:
        return serve(script, **settings)

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
        return await run(api, pipeline, Job(history=history, stream=stream), journal=journal)

    async def test_usage_is_learned(self, api: str, stream: bool):
        is_sent = FRAMEWORKS[api].streams_usage or not stream
        with nullcontext() if is_sent else pytest.raises(AssertionError):
            await super().test_usage_is_learned(api, stream)

    async def test_a_new_process_goes_on_with_the_same_bytes(self, tmp_path, api: str):
        storage = LocalStorage(tmp_path)
        async with serve([*rounds(2), "Again."]) as (server, _):
            done = await run(api, offloading(tmp_path), Job(), journal=storage)
            more = Job(task="and now?", history=done.history)
            again = await run(api, offloading(tmp_path), more, journal=storage)

        assert again.output == "Again."
        but = FRAMEWORKS[api].renamed.get(api_of(api))
        before, after = (dicts_of(request, but) for request in server.requests[-2:])
        assert after[: len(before)] == before
        assert placeholders(server.requests[-1]) == 4


@pytest.mark.parametrize("name", FRAMEWORKS)
async def test_the_model_reads_back_what_left(tmp_path, name: str):
    path = str(tmp_path / "t" / "c1.md")
    steps: list[Reply] = [
        answer_with(tool_use("look", {"number": 1}, id="c1")),
        answer_with(tool_use("read_offloaded", {"path": path}, id="c2")),
        "Read.",
    ]
    tools = {tool.name: tool for tool in offload_tools(LocalStorage(tmp_path), session_id="t")}

    async def read_offloaded(path: str, offset: int = 0) -> str:
        """Read a tool result that was offloaded to a file.

        Args:
            path: The path in its placeholder.
            offset: The character to begin at.
        """
        return str(await tools["read_offloaded"].text({"path": path, "offset": offset}))

    async with serve(steps) as (server, _):
        done = await run(name, offloading(tmp_path), Job(tools=[look, read_offloaded]))

    assert done.output == "Read."
    assert "result 1" not in items_of(server.requests[1])[-1]
    assert "result 1" in items_of(server.requests[2])[-1]
    assert not server.refused


@pytest.mark.parametrize("name", FRAMEWORKS)
async def test_a_structured_output(tmp_path, name: str):
    framework = FRAMEWORKS[name]
    tool = framework.structured
    said = answer_with(tool_use(tool, {"text": "So."}, id="c2")) if tool else '{"text": "So."}'
    before = ["So."] if framework.asks_again else []
    steps: list[Reply] = [answer_with(tool_use("look", {"number": 1}, id="c1")), *before, said]
    async with serve(steps) as (server, _):
        done = await run(name, offloading(tmp_path), Job(output=Report))

    assert done.output == str(Report(text="So."))
    assert placeholders(server.requests[1]) == 1
    assert not server.refused


@pytest.mark.parametrize("name", FRAMEWORKS)
async def test_a_sub_agent_or_hand_off_goes_on_with_what_left(tmp_path, name: str):
    hands_over = FRAMEWORKS[name].hands_over
    steps: list[Reply] = [
        answer_with(tool_use("look", {"number": 1}, id="c1")),
        answer_with(tool_use(hands_over, FRAMEWORKS[name].handed, id="h")),
        answer_with(tool_use("look", {"number": 2}, id="c2")),
        *FRAMEWORKS[name].after,
    ]
    async with serve(steps) as (server, _):
        done = await run(name, offloading(tmp_path), Job(helper=True))

    assert done.output == "Done."
    assert not server.refused
    assert not any("result 1" in item for request in server.requests for item in items_of(request))
