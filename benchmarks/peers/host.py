"""Runs one peer in its own environment and speaks with the runner.

They exchange one JSON object a line, in and out.

    python host.py DRIVER.py

The peer's driver holds the conversation as the peer's own messages. What it hears is converted
before the clock starts and what it would send after the clock has stopped, so that the seconds are
those of the peer's context management. Standard library only: it runs inside each peer's
environment.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import logging
import os
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

import fake_model


def load(path: str) -> Any:
    """The driver at *path*.

    In a folder on sys.path its name would hide the package that it drives.
    """
    spec = importlib.util.spec_from_file_location(f"driver_of_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Host:
    """One conversation at a time, in the hands of the driver."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.peer: Any = None
        self.sent: list[Any] = []
        # what a peer that was refused once adds to every later request
        self.again: dict[str, Any] = {}

    async def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """What the runner is told."""
        match asked["op"]:
            case "about":
                return {
                    "versions": self.module.VERSIONS(),
                    "counter": self.module.COUNTER,
                    "ways": self.module.WAYS,
                    "originals": self.module.ORIGINALS,
                }
            case "open":
                fake_model.reset()
                self.sent, self.again = [], {}
                folder = tempfile.mkdtemp(dir=asked.get("folder"))
                self.peer = self.module.Peer(asked["way"], folder, **asked.get("settings", {}))
                return {}
            case "turn":
                return await self.turn(asked)
            case "refused":
                again = getattr(self.peer, "again", None)
                self.again = again(asked["told"]) if again is not None else {}
                return {"options": self.again}
            case "kept":
                kept = self.peer.kept()
                files, state = await kept if inspect.isawaitable(kept) else kept
                return {"files": files, "state": state}
        raise ValueError(asked["op"])

    async def turn(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Hear what is new, and shape the context of the next call."""
        fake_model.reset()
        hear = getattr(self.peer, "arrive", None)
        native = self.peer.convert(asked["new"])
        begun = time.perf_counter()
        if hear is not None:
            await hear(native)
        arrived = time.perf_counter() - begun
        self.peer.append(native)
        begun = time.perf_counter()
        shaped = await self.peer.shape()
        seconds = time.perf_counter() - begun
        model = fake_model.spent.seconds
        told: dict[str, Any] = {
            "seconds": arrived + seconds - model,
            "arrived": arrived,
            "prompts": list(fake_model.prompts),
        }
        if asked.get("wire", True):
            wire = self.peer.wire(shaped)
            wire = await wire if inspect.isawaitable(wire) else wire
            kept = next(
                (i for i, (a, b) in enumerate(zip(self.sent, wire, strict=False)) if a != b),
                min(len(self.sent), len(wire)),
            )
            self.sent = wire
            options = {**self.again, **getattr(self.peer, "options", {})}
            told |= {"keep": kept, "messages": wire[kept:], "options": options}
        return told


async def main(driver: str) -> None:
    """Answer until the input ends. Whatever a peer prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    try:
        host = Host(load(driver))
    except Exception as error:  # noqa: BLE001  the runner lists a peer that does not import, with this as the reason
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        try:
            told = await host.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001  a peer's error is a result
            if os.environ.get("PEERS_DEBUG"):
                traceback.print_exc(file=sys.stderr)
            told = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(told, default=str), file=answers, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
