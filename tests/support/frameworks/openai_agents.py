"""The OpenAI Agents SDK."""

from __future__ import annotations

from typing import Any

from adapter_contract import Done
from agents import Agent, ModelSettings, Runner, function_tool, set_tracing_disabled
from frameworks.framework import Framework, Job

set_tracing_disabled(disabled=True)


class OpenAIAgents(Framework):
    package = "openai-agents"
    name = "OpenAI Agents SDK"
    apis = ("chat", "responses")
    hands_over = "transfer_to_helper"

    async def run(self, model: Any, job: Job) -> Done:
        tools = [function_tool(tool) for tool in job.tools]
        helpers = [Agent("helper", model=model, tools=tools)] if job.helper else []
        agent = Agent(
            "agent",
            model=model,
            model_settings=ModelSettings(include_usage=True),  # in a streamed chat, too
            tools=tools,
            handoffs=helpers,
            output_type=job.output,
        )
        items = [*(job.history or []), {"role": "user", "content": job.task}]
        if job.stream:
            streamed = Runner.run_streamed(agent, items, max_turns=100)
            async for _ in streamed.stream_events():
                pass
            done = streamed
        else:
            done = await Runner.run(agent, items, max_turns=100)
        history = done.to_input_list()
        results = [item["output"] for item in history if item.get("type", "").endswith("_output")]
        return Done(str(done.final_output), results, history)
