"""A DBOS workflow for each message of a user; its input is the new message, not the conversation.

    python -m examples.durable.dbos_workflow

DBOS stores the input of a workflow and the output of each of its steps. Runs the same conversation
without and with ctxpipe on a database of its own, and prints the size of what DBOS has stored.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import sqlalchemy
from dbos import DBOS, DBOSConfiguredInstance

from examples.durable import agent

CALLS_IN_TURN = 4
STORED = (
    "SELECT SUM(LENGTH(inputs)) FROM workflow_input",
    "SELECT SUM(LENGTH(output)) FROM workflow_output",
    "SELECT SUM(LENGTH(output)) FROM operation_outputs",
)


@DBOS.dbos_class()
class Agent(DBOSConfiguredInstance):
    """The workflows and steps of a worker.

    After a crash DBOS finds the object by its name, and continues the workflows that have not
    ended: a step that has returned is not run again.
    """

    def __init__(self, steps: agent.Steps) -> None:
        super().__init__("agent")
        self.steps = steps

    @DBOS.step(retries_allowed=True)
    async def ask(
        self, session_id: str, position: int, messages: list[agent.JsonDict]
    ) -> list[agent.JsonDict]:
        return await self.steps.ask(session_id, position, messages)

    @DBOS.step(retries_allowed=True)
    async def ask_with_history(self, messages: list[agent.JsonDict]) -> list[agent.JsonDict]:
        return await self.steps.ask_with_history(messages)

    @DBOS.step()
    async def run_tool(self, call: agent.JsonDict) -> agent.JsonDict:
        return await self.steps.run_tool(call)

    @DBOS.workflow()
    async def turn(self, session_id: str, position: int, message: agent.JsonDict) -> int:
        """Answer *message*, with ctxpipe. Returns the number of messages after it."""
        messages = [message]
        while True:
            content = await self.ask(session_id, position, messages)
            position += len(messages) + 1
            results = [await self.run_tool(call) for call in agent.calls_in(content)]
            if not results:
                return position
            messages = [{"role": "user", "content": results}]

    @DBOS.workflow()
    async def plain_turn(self, history: list[agent.JsonDict]) -> list[agent.JsonDict]:
        """Answer the end of *history*, without ctxpipe. Returns the messages that are new."""
        new_messages: list[agent.JsonDict] = []
        while True:
            content = await self.ask_with_history([*history, *new_messages])
            new_messages.append({"role": "assistant", "content": content})
            results = [await self.run_tool(call) for call in agent.calls_in(content)]
            if not results:
                return new_messages
            new_messages.append({"role": "user", "content": results})


async def converse(worker: Agent, pages: Sequence[int]) -> None:
    """Hold a conversation in which the user asks for the pages after each of *pages*."""
    position = 0
    for page in pages:
        position = await worker.turn("job-42", position, agent.user_words(page))


async def converse_plainly(worker: Agent, pages: Sequence[int]) -> None:
    """Hold the same conversation without ctxpipe."""
    history: list[agent.JsonDict] = []
    for page in pages:
        history.append(agent.user_words(page))
        history += await worker.plain_turn(history)


def stored_bytes(database: Path) -> int:
    """Return the size of all inputs and outputs in the database of DBOS."""
    engine = sqlalchemy.create_engine(f"sqlite:///{database}")
    with engine.connect() as connection:
        sizes = [connection.execute(sqlalchemy.text(query)).scalar() for query in STORED]
    engine.dispose()
    return sum(int(size or 0) for size in sizes)


async def main(calls: int, calls_in_turn: int, page_chars: int) -> None:
    """Hold both conversations, and print the sizes of what DBOS has stored for each."""
    pages = range(0, calls, calls_in_turn)
    with tempfile.TemporaryDirectory() as root:
        async with agent.scripted_client(calls_in_turn) as model:
            database = Path(root) / "dbos.sqlite"
            worker = launch(database, agent.Steps(root, model, page_chars))
            await converse_plainly(worker, pages)
            plain_bytes = stored_bytes(database)
            await converse(worker, pages)
            ctxpipe_bytes = stored_bytes(database) - plain_bytes
            DBOS.destroy()
    agent.print_sizes(f"DBOS, {len(pages)} workflows", calls, plain_bytes, ctxpipe_bytes)


def launch(database: Path, steps: agent.Steps) -> Agent:
    """Start DBOS in this process, with its tables in *database*."""
    url = f"sqlite:///{database}"
    DBOS(config={"name": "agent", "system_database_url": url, "log_level": "ERROR"})
    worker = Agent(steps)
    DBOS.launch()
    return worker


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=agent.CALLS)
    parser.add_argument("--calls-in-turn", type=int, default=CALLS_IN_TURN)
    parser.add_argument("--chars", type=int, default=agent.RESULT_CHARS)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.calls, arguments.calls_in_turn, arguments.chars))
