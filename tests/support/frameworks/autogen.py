"""AutoGen: an AssistantAgent."""

from __future__ import annotations

from typing import Any

from adapter_contract import Done
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.teams import Swarm
from autogen_core.models import FunctionExecutionResultMessage
from autogen_core.tools import FunctionTool
from frameworks.framework import Framework, Job


class AutoGen(Framework):
    package = "autogen-agentchat"
    name = "AutoGen"
    apis = ("chat",)
    streams_usage = False
    hands_over = "transfer_to_helper"

    async def run(self, model: Any, job: Job) -> Done:
        tools = [
            FunctionTool(tool, description=str(tool.__doc__), strict=job.output is not None)
            for tool in job.tools
        ]
        given: Any = {"tools": tools, "max_tool_iterations": 100}
        given |= {"model_client_stream": job.stream, "output_content_type": job.output}
        agent = AssistantAgent("agent", model, handoffs=["helper"] * job.helper, **given)
        if job.history:
            await agent.load_state(job.history)
        team: Any = agent
        if job.helper:
            helper = AssistantAgent("helper", model, **given)
            team = Swarm([agent, helper], termination_condition=TextMentionTermination("Done."))
        done = await team.run(task=job.task)
        messages = await agent.model_context.get_messages()
        results = [
            one.content
            for message in messages
            if isinstance(message, FunctionExecutionResultMessage)
            for one in message.content
        ]
        return Done(str(done.messages[-1].content), results, await agent.save_state())
