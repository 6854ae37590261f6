"""The OpenAI Agents SDK where it changes the history itself: an input filter, nested hand-offs."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from in_memory import in_memory

from ctxpipe import ContextPipeline, LocalStorage
from ctxpipe.adapters.openai import ctxpipe_client
from ctxpipe.presets import coding_agent
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import OpenAIServer, Reply, answer_with, tool_use

pytest.importorskip("agents", reason="openai-agents is not installed")

import openai
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from agents.run import ModelInputData

set_tracing_disabled(disabled=True)

MODELS: dict[str, Any] = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
LINE = '09:00 "INFO" a request was served\n'
ROUNDS = 12
HAND_OFF = 8


@function_tool
def look(number: int) -> str:
    """Look at something."""
    return f"result {number}\n{LINE * 500}"


async def work(api: str, folder: Path, config: RunConfig, *, hands_over: bool) -> list[Any]:
    """The requests of an agent that looks, and hands over in the middle if it *hands_over*."""

    def script(_: Any) -> Reply:
        number = len(server.requests) - 1
        if hands_over and number == HAND_OFF:
            return answer_with(tool_use("transfer_to_helper", {}))
        return answer_with(tool_use("look", {"number": number})) if number < ROUNDS else "Done."

    server = OpenAIServer(script)
    storage = LocalStorage(folder)
    stages = coding_agent(storage, work_dir=None, summarize=ExtractiveSummarizer())
    async with in_memory(server) as transport:
        http = ctxpipe_client(ContextPipeline(stages), session_id="job", transport=transport)
        async with openai.AsyncOpenAI(
            base_url=server.base_url, api_key="test", max_retries=0, http_client=http
        ) as client:
            model = MODELS[api]("gpt-5.2", client)
            helper = Agent("helper", model=model, tools=[look])
            handoffs: Any = [helper] if hands_over else []
            agent = Agent("agent", model=model, tools=[look], handoffs=handoffs)
            done = await Runner.run(agent, "go", max_turns=40, run_config=config)
    assert done.final_output == "Done."
    return list(server.requests)


def newest(data: Any) -> ModelInputData:
    """The first item and the newest eight: four rounds."""
    items = data.model_data.input
    return ModelInputData([items[0], *items[1:][-8:]], data.model_data.instructions)


@pytest.mark.parametrize("api", MODELS)
async def test_behind_an_input_filter_what_has_left_stays_away(api: str, tmp_path: Path):
    config = RunConfig(call_model_input_filter=newest)

    requests = await work(api, tmp_path, config, hands_over=False)

    assert requests[-1].tokens < 1.3 * requests[4].tokens
    assert all(LINE * 100 not in str(request.body) for request in requests)


@pytest.mark.parametrize("api", MODELS)
async def test_a_nested_hand_off_brings_nothing_back(api: str, tmp_path: Path):
    config = RunConfig(nest_handoff_history=True)

    requests = await work(api, tmp_path, config, hands_over=True)

    before, after = requests[HAND_OFF], requests[HAND_OFF + 1]
    assert after.tokens < 1.5 * before.tokens
    key = "messages" if api == "chat" else "input"
    for one, other in pairwise(requests[HAND_OFF + 1 :]):
        assert other.body[key][: len(one.body[key])] == one.body[key]
