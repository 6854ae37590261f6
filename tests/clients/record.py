"""Renew the recorded requests of the agents in package.json: ``make record-clients``.

    python tests/clients/record.py [NAME]...

Each agent is run once against a scripted API on this machine. Of what it sends only the form is
written, to tests/gateway/requests: see tests/support/client_requests.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS.parent), str(TESTS), str(TESTS / "support")]

from client_requests import FOLDER, write  # noqa: E402
from clients import CLIENTS, RECORDED, run_client  # noqa: E402
from recorder import Recorder  # noqa: E402


async def record(name: str) -> None:
    """Run the agent *name*, and write the form of its requests."""
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as home:
        run = await run_client(name, Path(home), recorder=recorder)
    if run.status or run.refused:
        raise SystemExit(f"{name} has failed: {run.status} {run.refused} {run.error}")
    packages = json.loads((TESTS / "clients" / "package.json").read_text())["dependencies"]
    package = RECORDED[name]
    path = FOLDER / f"{name}.json"
    write(path, {"client": package, "version": packages[package]}, recorder.requests)
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(recorder.requests)} requests")


async def main(names: list[str]) -> None:
    """Record the agents of these *names*, one after the other."""
    FOLDER.mkdir(exist_ok=True)
    for name in names or RECORDED:
        assert CLIENTS[name].binary.exists(), f"{name} is not installed: make clients"
        await record(name)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
