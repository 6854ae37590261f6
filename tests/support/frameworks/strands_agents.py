"""Strands, whose models always stream."""

from __future__ import annotations

from typing import Any, ClassVar

from adapter_contract import Done
from frameworks.framework import Framework, Job
from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager


class Strands(Framework):
    package = "strands-agents"
    name = "Strands"
    apis = ("chat",)
    structured = "Report"
    hands_over = "helper"
    handed: ClassVar = {"input": "go"}
    after = ("Helped.", "Done.")

    async def run(self, model: Any, job: Job) -> Done:
        given: Any = {"model": model, "callback_handler": None}
        given["conversation_manager"] = NullConversationManager()
        tools: list[Any] = [tool(one) for one in job.tools]
        if job.helper:
            helper = Agent(name="helper", tools=tools, **given)
            tools = [*tools, helper.as_tool()]
        agent = Agent(
            tools=tools, messages=job.history, structured_output_model=job.output, **given
        )
        done = await agent.invoke_async(job.task)
        blocks = [block for message in agent.messages for block in message["content"]]
        results = [
            block["toolResult"]["content"][0]["text"] for block in blocks if "toolResult" in block
        ]
        output = str(done.structured_output) if job.output else str(done).strip()
        return Done(output, results, agent.messages)
