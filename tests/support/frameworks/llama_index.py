"""LlamaIndex: a FunctionAgent."""

from __future__ import annotations

from typing import Any, ClassVar

from adapter_contract import Done
from frameworks.framework import Framework, Job
from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.core.memory import Memory


class LlamaIndex(Framework):
    package = "llama-index-core"
    name = "LlamaIndex"
    apis = ("chat", "responses")
    hands_over = "handoff"
    handed: ClassVar = {"to_agent": "helper", "reason": "Because."}
    keeps_thoughts = False
    asks_again = True  # with all that was said in one text

    async def run(self, model: Any, job: Job) -> Done:
        memory = Memory.from_defaults(session_id="s", token_limit=10**7)
        if job.history:  # it cannot store an empty list
            await memory.aput_messages(job.history)
        given: Any = {"llm": model, "tools": list(job.tools), "streaming": job.stream}
        agent: Any = FunctionAgent(
            name="agent", description="Works.", output_cls=job.output, **given
        )
        if job.helper:
            helper = FunctionAgent(name="helper", description="Helps.", **given)
            agent = AgentWorkflow([agent, helper], root_agent="agent")
        done = await agent.run(job.task, memory=memory, max_iterations=100)
        messages = await memory.aget_all()
        results = [said.content for said in messages if said.role == "tool"]
        output = done.get_pydantic_model(job.output) if job.output else done
        return Done(str(output), results, messages)
