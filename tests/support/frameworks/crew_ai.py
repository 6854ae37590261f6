"""CrewAI: an agent by itself, whose clients are synchronous."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, ClassVar

import anyio.to_thread
from adapter_contract import Done
from frameworks.framework import Framework, Job

os.environ["CREWAI_DISABLE_TELEMETRY"] = os.environ["OTEL_SDK_DISABLED"] = "true"
os.environ["CREWAI_TRACING_ENABLED"] = "false"

from crewai import Agent, Crew, Task
from crewai.tools import tool as as_tool


class CrewAI(Framework):
    package = "crewai"
    name = "CrewAI"
    apis = ("chat",)
    hands_over = "delegate_work_to_coworker"
    handed: ClassVar = {"task": "go", "context": "none", "coworker": "helper"}
    after = ("Helped.", "Done.")

    async def run(self, model: Any, job: Job) -> Done:
        model.stream = job.stream
        tools = [as_tool(tool.__name__)(synchronous(tool)) for tool in job.tools]
        given: Any = {"goal": "g", "backstory": "b", "llm": model, "tools": tools, "max_iter": 100}
        agent = Agent(role="agent", allow_delegation=job.helper, **given)
        if job.helper:
            helper = Agent(role="helper", **given)
            task = Task(description=job.task, expected_output="text", agent=agent)
            crew = Crew(agents=[agent, helper], tasks=[task])
            said = await anyio.to_thread.run_sync(crew.kickoff)
            return Done(said.raw, [], None)
        messages = [*(job.history or []), {"role": "user", "content": job.task}]
        kickoff = partial(agent.kickoff, messages, response_format=job.output)
        done = await anyio.to_thread.run_sync(kickoff)
        results = [said["content"] for said in done.messages if said["role"] == "tool"]
        output = str(done.pydantic) if job.output else done.raw
        history = [said for said in done.messages if said["role"] != "system"]
        return Done(output, results, history)


def synchronous(tool: Any) -> Any:
    """*tool* as a function that needs no loop."""
    if not iscoroutinefunction(tool):
        return tool

    def call(path: str, offset: int = 0) -> str:
        return asyncio.run(tool(path, offset))

    call.__doc__ = tool.__doc__
    return call
