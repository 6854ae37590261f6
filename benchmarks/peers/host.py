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
import pickle
import sys
import tempfile
import time
import traceback
import warnings
from dataclasses import dataclass, field
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
    sys.modules[spec.name] = module  # what is saved names its classes by it
    spec.loader.exec_module(module)
    return module


class Stopwatch:
    """Seconds from its creation to `stop`: *processor* of all threads, and by the *clock*."""

    def __init__(self) -> None:
        self.processor = -time.process_time()
        self.clock = -time.perf_counter()

    def stop(self) -> None:
        self.processor += time.process_time()
        self.clock += time.perf_counter()


@dataclass
class Conversation:
    """Conversation that the driver works with."""

    peer: Any
    sent: list[Any] = field(default_factory=list)
    # what a peer that was refused once adds to every later request
    again: dict[str, Any] = field(default_factory=dict)


class Host:
    """The conversations of a process, by name; most rows have one at a time."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.open: dict[str, Conversation] = {}

    async def answer(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the answer for the runner."""
        match asked["op"]:
            case "about":
                return {
                    "versions": self.module.VERSIONS(),
                    "counter": self.module.COUNTER,
                    "ways": self.module.WAYS,
                    "originals": self.module.ORIGINALS,
                    "chat": hasattr(self.module.Peer, "chat"),
                    "state": hasattr(self.module, "STATE"),
                    "searches": hasattr(self.module.Peer, "search"),
                    "forgets": hasattr(self.module.Peer, "forget"),
                }
            case "open":
                fake_model.reset()
                self.begin(asked)
                return {}
            case "turn":
                return await self.turn(asked)
            case op:
                return await self.ask(op, self.peer(asked), asked)

    async def ask(self, op: str, peer: Any, asked: dict[str, Any]) -> dict[str, Any]:
        """Return the facts about a conversation between its turns."""
        told: dict[str, Any] = {}
        match op:
            case "save":
                self.save(Path(asked["file"]), peer)
            case "load":
                self.load(Path(asked["file"]), peer)
            case "refused":
                conversation = self.open[asked["name"]]
                again = getattr(peer, "again", None)
                conversation.again = again(asked["told"]) if again is not None else {}
                told["options"] = conversation.again
            case "search":
                told["text"] = await awaited(peer.search(asked["query"]))
            case "forget":
                await awaited(peer.forget())
            case "kept":
                told["files"], told["state"] = await awaited(peer.kept())
            case _:
                raise ValueError(op)
        return told

    def begin(self, asked: dict[str, Any]) -> None:
        """Begin a conversation: in a folder of its own, a shared one, or as another's sub-agent.

        A driver's `sibling` makes a sub-agent as its framework does; without one it is a
        conversation like any other, in the same folder.
        """
        folder = asked.get("shared") or tempfile.mkdtemp(dir=asked.get("folder"))
        of = self.open.get(asked.get("of") or "")
        if of is None:
            self.open = {}
        sibling = getattr(of.peer, "sibling", None) if of is not None else None
        if sibling is not None:
            peer = sibling()
        else:
            folder = str(of.peer.folder) if of is not None else folder
            settings = asked.get("settings", {})
            fake_model.spent.pause = settings.pop("pause", 0.0)
            fake_model.spent.asked = 0
            peer = self.module.Peer(asked["way"], folder, **settings)
            peer.folder = Path(folder)
        self.open[asked["name"]] = Conversation(peer)

    def save(self, file: Path, peer: Any) -> None:
        """Write what the framework's own store would keep of a conversation."""
        file.write_bytes(pickle.dumps({name: getattr(peer, name) for name in self.module.STATE}))

    def load(self, file: Path, peer: Any) -> None:
        """Have a conversation go on from what was saved."""
        for name, value in pickle.loads(file.read_bytes()).items():  # noqa: S301  written by `save`
            setattr(peer, name, value)

    def peer(self, asked: dict[str, Any]) -> Any:
        """The driver's side of the conversation."""
        return self.open[asked["name"]].peer

    async def turn(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Hear what is new, and shape the context of the next call."""
        fake_model.reset()
        conversation = self.open[asked["name"]]
        peer = conversation.peer
        hear = getattr(peer, "arrive", None)
        native = peer.convert(asked["new"])
        arriving = Stopwatch()
        if hear is not None:
            await hear(native)
        arriving.stop()
        peer.append(native)
        shaping = Stopwatch()
        shaped = await peer.shape()
        shaping.stop()
        told: dict[str, Any] = {
            "seconds": arriving.processor + shaping.processor - fake_model.spent.processor,
            "clock": arriving.clock + shaping.clock - fake_model.spent.seconds,
            "waited": arriving.clock + shaping.clock,
            "asked": fake_model.spent.asked,
            "prompts": list(fake_model.prompts),
        }
        if asked.get("wire", True):
            wire = await awaited(peer.chat(shaped) if asked.get("chat") else peer.wire(shaped))
            sent = conversation.sent
            kept = next(
                (i for i, (a, b) in enumerate(zip(sent, wire, strict=False)) if a != b),
                min(len(sent), len(wire)),
            )
            conversation.sent = wire
            options = {**conversation.again, **getattr(peer, "options", {})}
            told |= {"keep": kept, "messages": wire[kept:], "options": options}
        return told


async def awaited(value: Any) -> Any:
    """*value*, or what it becomes: a driver's function may be a coroutine."""
    return await value if inspect.isawaitable(value) else value


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
    # In a thread: what a peer does in the background goes on between its turns.
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            told = await host.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001  a peer's error is a result
            if os.environ.get("PEERS_DEBUG"):
                traceback.print_exc(file=sys.stderr)
            told = {"error": f"{type(error).__name__}: {str(error)[:300]}"}
        print(json.dumps(told, default=str), file=answers, flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
