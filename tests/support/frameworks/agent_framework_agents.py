"""Microsoft's agent-framework."""

from __future__ import annotations

from typing import Any, ClassVar

from adapter_contract import Done
from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from frameworks.framework import Framework, Job


class AgentFramework(Framework):
    package = "agent-framework-openai"
    name = "agent-framework"
    apis = ("chat", "responses")
    hands_over = "helper"
    handed: ClassVar = {"task": "go"}
    after = ("Helped.", "Done.")
    renamed: ClassVar = {"chat": "name", "responses": "id"}

    async def run(self, model: Any, job: Job) -> Done:
        tools: list[Any] = list(job.tools)
        if job.helper:
            helper = Agent(client=model, tools=tools, name="helper", description="Helps.")
            tools = [*tools, helper.as_tool()]
        agent = Agent(client=model, tools=tools)
        session = job.history or agent.create_session()
        options: Any = {"response_format": job.output} if job.output else {}
        if isinstance(model, OpenAIChatClient):
            options["store"] = False  # or the API keeps the history, and nothing of it is sent
        if job.stream:
            stream = agent.run(job.task, stream=True, session=session, options=options)
            async for _ in stream:
                pass
            done = await stream.get_final_response()
        else:
            done = await agent.run(job.task, session=session, options=options)
        messages = session.state["in_memory"]["messages"]
        contents = [content for message in messages for content in message.contents]
        results = [str(one.result) for one in contents if one.type == "function_result"]
        return Done(str(done.value) if job.output else done.text, results, session)
