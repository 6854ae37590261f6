"""The same history gives the same bytes in every process, however Python hashes texts there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from random import Random

from histories import conversation, python_source, step, user
from places import ROOT
from recorded import NIGHTLY
from seeded import Talk

from ctxpipe.messages import Message

SEEDS = ("1", "2", "3") if NIGHTLY else ("1", "2")
STEPS = 20

PROGRAM = """
import asyncio, json, sys
from ctxpipe import (
    BatchOffload, Budget, Collapse, Compact, ContextPipeline, DirectOffload, ExtractiveSummarizer,
    LocalStorage, MediaOffload, Preview, RatioGate, Restore, SmartTruncate, TrimReadBacks,
)

async def main():
    histories, root, work = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
    storage = LocalStorage(root, clock=float)
    first = DirectOffload(storage, min_chars=2000, preview=Preview(20, 10)), TrimReadBacks(storage)
    media = MediaOffload(storage, max_bytes=60, keep_bytes=8)
    batch = BatchOffload(storage, RatioGate(0.05), inputs={"write_file", "edit_files"})
    collapse = Collapse(storage, keep_recent=2, min_calls=0, min_tokens=1)
    compact = Compact(ExtractiveSummarizer(), storage, restore=Restore(work, shell=True))
    last = compact, SmartTruncate(storage, max_tokens=900, shell=True)
    budget = Budget(window=6000, trigger=3000)
    count = lambda text: len(text) // 4 + 1
    for number, history in enumerate(histories):
        for old in batch, collapse:
            pipeline = ContextPipeline([*first, media, old, *last], budget=budget, counter=count)
            session = pipeline.session(f"{type(old).__name__}{number}")
            for share in (2, 1):
                end = len(history) // share
                while history[end - 1]["role"] != "user":
                    end -= 1
                result = await session.run(history[:end], force=share == 1)
                print(json.dumps(result.messages))
                for report in result.reports:
                    print(report.stage, report.outcome.name, report.reason, report.tokens_after)

asyncio.run(main())
"""


def histories() -> list[list[Message]]:
    """Conversations with all kinds of blocks, and a call that writes several long texts."""
    talks: list[list[Message]] = []
    for seed in range(2):
        talk = Talk(Random(seed))
        files = {f"file{number}": f"{number} {seed} " * 600 for number in range(6)}
        talks.append(
            conversation(
                *talk.opening(),
                step("edit", "edit_files", {"files": files}, "done"),
                user(talk.words()),
                *([message] for message in talk.loop(STEPS)),
                user("go on"),
            )
        )
    return talks


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_contexts_reports_and_files_are_the_same_under_every_hash_seed(tmp_path):
    given, root, work = tmp_path / "given.json", tmp_path / "root", tmp_path / "work"
    given.write_text(json.dumps(histories()))
    (work / "src").mkdir(parents=True)
    (work / "src" / "file0.py").write_text(python_source(8))
    runs: list[tuple[bytes, dict[str, bytes]]] = []
    for seed in SEEDS:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PROGRAM, str(given), str(root), str(work)]
        printed = subprocess.check_output(command, env=environment, cwd=tmp_path)
        runs.append((printed, files_below(root)))
        root.rename(tmp_path / f"root-{seed}")  # each begins with an empty folder of one name

    for printed, files in runs[1:]:
        assert printed == runs[0][0]
        assert files == runs[0][1]
    for stage in ("DirectOffload", "BatchOffload", "MediaOffload", "Collapse", "Compact"):
        assert f"{stage} CHANGED".encode() in runs[0][0]
