"""A client of ``ctxpipe mcp`` reads back what was offloaded.

python -m examples.adapters.mcp_reader
"""

from __future__ import annotations

import asyncio
import sys
import tempfile

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from ctxpipe import LocalStorage
from examples.adapters.scripted import read_log


async def main(folder: str) -> None:
    """Offload a result, and search it as a model would."""
    [path] = await LocalStorage(folder).write([("job-42/call_1.md", read_log(1))])
    server = StdioServerParameters(command=sys.executable, args=["-m", "ctxpipe", "mcp", folder])
    async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
        await session.initialize()
        arguments = {"path": path, "pattern": "served", "limit": 2}
        found = await session.call_tool("search_offloaded", arguments)
        print(found)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))
