"""Time that ctxpipe takes in the rows of speed, by what it is for.

    python -m benchmarks.peers.spent

The profiler's own cost is in the shares; what worker threads do is told as processor time.
"""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from ctxpipe.messages import Message

from . import conversations

HERE = Path(__file__).parent
WIDE = 10**9
BUYS = (
    ("a valid request, whatever comes in", ("messages/", "edits/repair", "edits/groups")),
    ("edits in place noticed, the prefix kept", ("timeline", "edits/diff", "edits/thinking")),
    ("cache misses explained", ("cache_doctor/", "prompt_cache/", "session/cache_watch")),
    ("tokens counted exactly, anchored on the bill", ("tokens/", "tiktoken")),
    (
        "each stage asked, each with a report",
        ("runner", "reports", "stages/", "edits/", "markers/"),
    ),
    ("whole files, nobody else's, or none", ("storage/", "names", "/os.py", "posix", "workers/")),
    ("evidence, archive, the summary's frame", ("atoms", "folding/", "summarizers/", "json")),
)
ELSE = "the session's own, asyncio and Python"
MODEL = ("fake_model", "collections/__init__")  # its time is taken out, as in the rows


async def profiled(peer: Any, turns: Sequence[list[Message]]) -> tuple[Counter[str], float]:
    """The loop's seconds by what they buy, and the processor time of all threads, in *turns*."""
    profile = cProfile.Profile(time.thread_time)
    cpu = 0.0
    for new in turns:
        native = peer.convert(new)
        begun = time.process_time()
        profile.enable()
        peer.append(native)
        await peer.shape()
        profile.disable()
        cpu += time.process_time() - begun
    spent: Counter[str] = Counter()
    stats: Mapping[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    for (file, _, name), (_, _, seconds, _, callers) in stats.items():
        if file == "~":  # a builtin belongs to who calls it
            for (caller, _, _), (_, _, part, _) in callers.items():
                if not any(part_of in caller for part_of in MODEL):
                    spent[_bought(caller, name)] += part
        elif not any(part_of in file for part_of in MODEL):
            spent[_bought(file, name)] += seconds
    return spent, cpu


def _bought(file: str, name: str) -> str:
    where = file if name.startswith("<") else f"{file} {name}"
    return next((what for what, parts in BUYS if any(p in where for p in parts)), ELSE)


async def spent(driver: Any, messages: int) -> None:
    """Print the rows."""
    history = conversations.billed(conversations.quiet(messages))
    tokens = sum(len(str(message["content"])) for message in history) // 4
    quiet = [
        conversations.billed(conversations.quiet(2, messages + 2 * i), tokens + 150 * i)
        for i in range(100)
    ]
    large = [conversations.bulky(1, 100_000, messages + 2 * i) for i in range(10)]
    halves = list(conversations.halves(conversations.bulky(300, 2700)))
    rows: list[tuple[str, str, Mapping[str, Any], list[Message], Sequence[Any]]] = [
        (f"nothing to do behind {messages:,}", "default", {"window": WIDE}, history, quiet),
    ]
    if messages < 1_000:
        offload = {"window": WIDE, "min_chars": 8000}
        rows += [
            ("one large result", "offload", offload, history, large),
            ("a compaction", "compact", {"trigger": 165_000}, list(halves[0]), [halves[1]]),
        ]
    for name, way, settings, known, turns in rows:
        with tempfile.TemporaryDirectory() as folder:
            peer = driver.Peer(way, folder, **settings)
            peer.append([dict(message) for message in known])
            await peer.shape()
            found, cpu = await profiled(peer, turns)
        whole = sum(found.values())
        print(f"\n{name}: {whole / len(turns) * 1e3:.2f} ms a turn on the loop, profiled; ", end="")
        print(f"{cpu / len(turns) * 1e3:.2f} ms of processor time, the model's included")
        for what, seconds in found.most_common():
            print(f"  {seconds / whole:6.1%}  {what}")


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    driver = import_module("host").load(str(HERE / "drivers" / "ctxpipe.py"))
    for count in (200, 2_000):
        asyncio.run(spent(driver, count))
