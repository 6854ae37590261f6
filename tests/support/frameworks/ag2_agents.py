"""AG2."""

from __future__ import annotations

from typing import Any, ClassVar

from adapter_contract import Done
from ag2 import Agent, MemoryStream
from ag2.events import ToolResultEvent
from frameworks.framework import Framework, Job


class AG2(Framework):
    package = "ag2"
    name = "AG2"
    apis = ("chat", "responses")
    hands_over = "helper"
    handed: ClassVar = {"objective": "go"}
    after = ("Helped.", "Done.")

    async def run(self, model: Any, job: Job) -> Done:
        config = model.copy(streaming=job.stream)
        tools: list[Any] = list(job.tools)
        if job.helper:
            helper = Agent("helper", config=config, tools=tools)
            tools = [*tools, helper.as_tool(name="helper", description="Helps.")]
        agent = Agent("agent", config=config, tools=tools)
        given: Any = {"response_schema": job.output} if job.output else {}
        stream = MemoryStream()
        await stream.history.replace(job.history or [])
        done = await agent.ask(job.task, stream=stream, **given)
        events = list(await stream.history.get_events())
        results = [
            event.result.parts[0].content for event in events if isinstance(event, ToolResultEvent)
        ]
        output = await done.content() if job.output else done.body
        return Done(str(output), results, events)
