"""A worker of DBOS, for a test that kills it: ``python dbos_worker.py ROOT URL``.

It runs the workflow "talk" of `examples.durable.dbos_workflow` once, or continues it, and prints
the number of messages after it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import anthropic
from dbos import DBOS, SetWorkflowID

from examples.durable import agent, dbos_workflow


async def main(root: str, url: str) -> None:
    async with anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        worker = dbos_workflow.launch(Path(root) / "dbos.sqlite", agent.Steps(root, client))
        with SetWorkflowID("talk"):
            handle = await DBOS.start_workflow_async(worker.turn, "job", 0, agent.user_words(0))
        print(await handle.get_result())
        DBOS.destroy()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
