"""A huge result goes to its file and into the journal in pieces, with no second copy of it.

It is 200 MB in the nightly profile, else 8 MB.
"""

from __future__ import annotations

import pytest
from processes import python
from recorded import NIGHTLY

MEGABYTES = 200 if NIGHTLY else 8
SECONDS = 900.0 if NIGHTLY else 120.0

START = """
import asyncio, gc, sys, tracemalloc
from ctxpipe import *
from ctxpipe.placeholders.names import content_hash

if coverage := sys.modules.get("coverage"):  # what it notes would count
    coverage.Coverage.current().stop()
gc.disable()
root, unit, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3])
text = unit * (megabytes * 2**20 // len(unit.encode()))
size = sys.getsizeof(text)

def check_peak():
    _, peak = tracemalloc.get_traced_memory()
    assert peak < 2 * size, (peak, size)
"""

WRITE = f"""{START}
async def main():
    storage = LocalStorage(root)
    await storage.write([("s/taken.md", "another text")])
    tracemalloc.start()
    await storage.write([("s/a.md", text)])
    await storage.write([("s/a.md", text)])
    await storage.write([("s/taken.md", text)])
    check_peak()
    for path in ("/s/a.md", f"/s/taken-{{content_hash(text)}}.md"):
        with open(storage.root + path, encoding="utf-8") as file:
            assert file.read() == text
    print("done")

asyncio.run(main())
"""

TURN = f"""{START}
storage = LocalStorage(root)
journal = {{
    "of the same storage": lambda: storage,
    "in a database": lambda: SQLiteJournal(root + ".db", texts=storage),
}}[sys.argv[4]]()
stages = [BatchOffload(storage)] if sys.argv[5] == "offloaded" else []

def session():
    return ContextPipeline(stages, budget=Budget(window=200_000)).session("s", journal=journal)

async def main():
    call = {{"type": "tool_use", "id": "t", "name": "look", "input": {{}}}}
    history = [{{"role": "user", "content": "go"}}, {{"role": "assistant", "content": [call]}}]
    result = {{"type": "tool_result", "tool_use_id": "t", "content": text}}
    await session().run(list(history))
    history += [{{"role": "user", "content": [result]}}, {{"role": "assistant", "content": "ok"}}]
    tracemalloc.start()
    turn = await session().run(history)
    check_peak()
    tracemalloc.stop()
    assert turn.changed == bool(stages)
    assert not turn.notices
    assert await session().history() == history
    print("done")

asyncio.run(main())
"""

UNITS = pytest.mark.parametrize("unit", ["line 7 of a log\n", "漢字 🙂\n"], ids=["ascii", "wide"])


@UNITS
def test_it_is_written_in_twice_its_size_at_most(tmp_path, unit: str):
    assert python(WRITE, tmp_path / "root", unit, MEGABYTES, seconds=SECONDS) == "done"


@UNITS
@pytest.mark.parametrize(
    ("journal", "outcome"),
    [
        ("of the same storage", "offloaded"),
        ("of the same storage", "kept in the context"),
        ("in a database", "offloaded"),
    ],
)
def test_a_turn_with_a_journal_takes_twice_its_size_at_most(tmp_path, journal, outcome, unit: str):
    arguments = (tmp_path / "root", unit, MEGABYTES, journal, outcome)

    assert python(TURN, *arguments, seconds=SECONDS) == "done"
