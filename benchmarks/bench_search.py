"""What the search in all that has left a context takes, and what it finds.

    python benchmarks/bench_search.py           # 1,000 results of 5 kB: the index, and a question
    python benchmarks/bench_search.py FOLDER    # facts of FOLDER/probes in FOLDER/transcripts

A probe names facts of a recorded conversation that a later message uses again. At that message each
is asked for, if it is not in sight, by the sentence around its use, without the fact itself.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import anyio

from benchmarks.figures import add_figure, recording
from ctxpipe import Budget, ContextPipeline, LocalStorage, Tool, offload_tools, presets
from ctxpipe.lab.transcripts import read_transcript
from ctxpipe.messages import Message, strings
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter

RESULTS, CHARS = 1_000, 5_000
INDEX_MS, QUESTION_MS = 1_000, 50
"""Limits of the processor's time, which other programs do not change much."""
RECALL_TARGET = 0.75
"""Of the facts that are asked for, so many are among the first five passages."""
QUESTIONS = {
    "a question of five words": "when did the certificate expire",
    "two characters": "Öl",
    "a word that is nowhere": "quicksilver",
    "a Chinese sentence": "服务器的证书什么时候过期",
}
LINES = {
    101: "ERROR the certificate of vault-101 expired on 2026-10-04",
    202: "WARN Öl auf der Fahrbahn",
    303: "证书已经过期，服务器拒绝连接",
}
WINDOW_SHARE = 0.2
"""Of a conversation's tokens: so much of it may be in sight."""
LEAST_WINDOW = 6_000
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", nargs="?", type=Path)
    folder: Path | None = options.parse_args().folder
    if folder is None:
        anyio.run(speed)
    else:
        anyio.run(recall, folder)


# Speed --------------------------------------------------------------------------------------------


async def speed() -> None:
    with tempfile.TemporaryDirectory() as root:
        storage = LocalStorage(root)
        await storage.write([(f"s/t{number}.md", log(number)) for number in range(RESULTS)])
        [_, _, search] = offload_tools(storage, session_id="s")
        print(f"{RESULTS:,} results of {CHARS / 1000:g} kB in files")
        await measure(search, "the first question, with the index", ["port"], INDEX_MS)
        for what, question in QUESTIONS.items():
            await measure(search, what, [question] * 9, QUESTION_MS)
        [index] = Path(root, "s").glob(".ctxpipe-index")
        print(f"  {'the index':<40} {index.stat().st_size / 1e6:>9,.1f} MB")


async def measure(search: Tool, what: str, questions: Sequence[str], limit: float) -> None:
    """Print and note the median time of *questions*.

    Beside it is processor time, in all threads, and whether it is within *limit* milliseconds.
    """
    walls: list[float] = []
    processor: list[float] = []
    for question in questions:
        begun = perf_counter(), process_time()
        await search({"query": question})
        walls.append(perf_counter() - begun[0])
        processor.append(process_time() - begun[1])
    wall, busy = median(walls) * 1e3, median(processor) * 1e3
    held = "within" if busy <= limit else "OVER"
    print(f"  {what:<40} {wall:>9,.1f} ms, {busy:,.1f} of a processor, {held} {limit:,} ms")
    add_figure(what, wall, "ms")


def log(number: int) -> str:
    """The log of one run."""
    seeded = random.Random(number)
    lines: list[str] = []
    while sum(map(len, lines)) < CHARS:
        words = " ".join(seeded.choices(WORDS, k=8))
        lines.append(f"2026-11-{seeded.randint(1, 28):02} INFO {words}\n")
    lines.insert(7, LINES.get(number, "") + "\n")
    return "".join(lines)[:CHARS]


WORDS = [
    "".join(random.Random(number).choices("etaoinshrdlucmfwypvbgk", k=3 + number % 7))
    for number in range(4_000)
]

# Recall -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Score:
    """Of facts that were used again: how many were *in_sight*, *asked* for, and *found*."""

    in_sight: int = 0
    asked: int = 0
    found: int = 0


async def recall(folder: Path) -> None:
    total = Score()
    for file in sorted(folder.glob("probes/*.json")):
        probe = json.loads(file.read_text("utf-8"))
        transcript = folder / "transcripts" / f"{probe['id']}.jsonl"
        await score(read_transcript(transcript).messages, probe["facts"], total)
    share = total.found / max(1, total.asked)
    held = "met" if share >= RECALL_TARGET else "MISSED"
    print(f"{total.asked} facts asked for, {total.in_sight} more in sight: {share:.1%} found")
    print(f"the target of {RECALL_TARGET:.0%} is {held}")
    add_figure("facts among the first five passages", 100 * share, "%")


async def score(messages: Sequence[Message], facts: Sequence[Any], total: Score) -> None:
    """Add to *total* what is found of *facts*, in a session that is run up to each use."""
    window = max(LEAST_WINDOW, int(WINDOW_SHARE * TokenCounter().total(messages)))
    with tempfile.TemporaryDirectory() as root:
        stages = presets.coding_agent(
            LocalStorage(root), work_dir=None, summarize=ExtractiveSummarizer()
        )
        session = ContextPipeline(stages, budget=Budget(window=window)).session("s")
        search = {tool.name: tool for tool in offload_tools(session)}["search_history"]
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            context = (await session.run(list(messages[:number]))).messages
            sight = "\n".join(text for one in context for text in strings(one))
            for fact in facts:
                if number not in fact["used_again_at"]:
                    continue
                question = next(questions(message, fact["fact"]), None)
                if fact["fact"] in sight:
                    total.in_sight += 1
                elif question is not None:
                    total.asked += 1
                    total.found += fact["fact"] in await search({"query": question})


def questions(message: Message, fact: str) -> Iterator[str]:
    """The sentences of *message* around *fact*, without it, that say anything else."""
    for text in strings(message):
        for sentence in _SENTENCE_END.split(text):
            question = sentence.replace(fact, " ")
            if fact in sentence and len(re.findall(r"\w{3,}", question)) >= 2:
                yield question


if __name__ == "__main__":
    with recording(__file__):
        main()
