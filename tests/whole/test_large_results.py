"""A result of 200 MB goes to its file while the loop runs on, in little more than its own size."""

from __future__ import annotations

from pathlib import Path

import pytest
from processes import python

PROGRAM = """
import asyncio, gc, sys, threading, time, tracemalloc
from ctxpipe import LocalStorage, TokenCounter
from ctxpipe.names import content_hash

gc.disable()
MB = 2**20
text = (sys.argv[2] * MB)[: 200 * MB // len(sys.argv[2].encode())]
size = len(text.encode())

async def main():
    storage = LocalStorage(sys.argv[1])
    counter = TokenCounter()
    await storage.write([("s/taken.md", "another text")])
    tracemalloc.start()
    works = {
        "write": lambda: storage.write([("s/a.md", text)]),
        "again": lambda: storage.write([("s/a.md", text)]),
        "another name": lambda: storage.write([("s/taken.md", text)]),
        "look up": lambda: asyncio.to_thread(counter._known.get, text),
    }
    for name, work in works.items():
        stalls = []
        for _ in range(3):  # other programs of the machine stall it, too
            task = asyncio.ensure_future(work())
            worst = 0.0
            while not task.done():
                began = time.perf_counter()
                await asyncio.sleep(0.002)
                worst = max(worst, time.perf_counter() - began)
            await task
            stalls.append(worst)
        assert min(stalls) < 0.1, (name, stalls)
    _, peak = tracemalloc.get_traced_memory()
    assert peak < 2 * size, (peak, size)
    stored = (storage.root + "/s/a.md", storage.root + f"/s/taken-{content_hash(text)}.md")
    for path in stored:
        with open(path, encoding="utf-8") as file:
            assert file.read() == text

asyncio.run(main())
print("done")
"""


@pytest.mark.parametrize("unit", ["line 7 of a log\n", "漢字 🙂\n"], ids=["ascii", "wide"])
def test_it_is_written_without_a_stall_in_twice_its_size_at_most(tmp_path: Path, unit: str) -> None:
    assert python(PROGRAM, tmp_path / "root", unit) == "done"
