"""Haystack: its Agent."""

from __future__ import annotations

from typing import Any, ClassVar

from adapter_contract import Done
from frameworks.framework import Framework, Job
from haystack.components.agents import Agent
from haystack.dataclasses import ChatMessage
from haystack.tools import ComponentTool, create_tool_from_function


class Haystack(Framework):
    package = "haystack-ai"
    name = "Haystack"
    apis = ("chat",)
    hands_over = "helper"
    handed: ClassVar = {"messages": [{"role": "user", "content": [{"text": "go"}]}]}
    after = ("Helped.", "Done.")

    async def run(self, model: Any, job: Job) -> Done:
        tools = [create_tool_from_function(tool) for tool in job.tools]
        if job.helper:
            helper = Agent(chat_generator=model, tools=tools)
            tools = [*tools, ComponentTool(helper, name="helper", description="Helps.")]
        agent = Agent(chat_generator=model, tools=tools)
        messages = [*(job.history or []), ChatMessage.from_user(job.task)]
        options: Any = {}
        if job.output:
            model.tools_strict = True
            options = {"response_format": job.output}
        callback = None
        if job.stream:
            callback = ignore
            options = {"stream_options": {"include_usage": True}}
        done = await agent.run_async(
            messages, streaming_callback=callback, generation_kwargs=options
        )
        history = done["messages"]
        results = [said.tool_call_result.result for said in history if said.tool_call_result]
        said = history[-1].text
        output = str(job.output.model_validate_json(said)) if job.output else said
        return Done(output, results, history)


async def ignore(chunk: Any) -> None:
    """Ignore a chunk of a stream."""
