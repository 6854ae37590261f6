"""Time of the search in all that has left a context, and the facts that it finds.

    python benchmarks/bench_search.py           # 1,000 results of 5 kB: the index, and a question
    python benchmarks/bench_search.py FOLDER    # facts of FOLDER/probes in FOLDER/transcripts

Then a small index of 5 MB and one as large as an index becomes get one more file each. Target: a
search after it takes at most twice as long in the large one. A question with fewer than five
answers is also looked for inside of words, in all texts, so it takes longer the more there are.

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
from dataclasses import dataclass, field
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
INDEX_RESULTS = {"small": 550, "large": 9_900}
"""Results in the indexes, which have at most 10,000 of this size."""
INDEX_ROUNDS = 25
ONE_MORE_TARGET = 2.0
"""A search after one more file: largest time with the large index, relative to the small one."""
ANSWERS = 8
"""Number of texts with the same planted line: enough for an answer."""
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
        anyio.run(growth)
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


async def growth() -> None:
    """Print the processor time of searches after one more file, in a small and a large index."""
    with tempfile.TemporaryDirectory() as root:
        costs = {name: SearchCost() for name in INDEX_RESULTS}
        searches: dict[str, Tool] = {}
        storage = LocalStorage(root)
        for name, count in INDEX_RESULTS.items():
            for start in range(0, count, 500):
                numbers = range(start, min(count, start + 500))
                texts = [(f"{name}/t{number}.md", numbered_log(number)) for number in numbers]
                await storage.write(texts)
            [_, _, searches[name]] = offload_tools(storage, session_id=name)
            await searches[name]({"query": "planted"})
        for number in range(INDEX_ROUNDS):
            for name, search in searches.items():  # alternately: a busy machine slows both
                await costs[name].add(storage, search, name, number)
        small, large = (costs[name] for name in INDEX_RESULTS)
        sizes = [Path(root, name, ".ctxpipe-index").stat().st_size / 1e6 for name in INDEX_RESULTS]
    print(f"indexes of {sizes[0]:.0f} and {sizes[1]:.0f} MB, in ms of a processor, and the ratio")
    rows = (
        ("a question", small.question, large.question),
        ("a question after one more file", small.one_more, large.one_more),
        ("a word that is nowhere, in them", small.nowhere, large.nowhere),
    )
    for what, of_small, of_large in rows:
        ratio = median(of_large) / median(of_small)
        least = min(of_large) / min(of_small)
        print(
            f"  {what:<40} {median(of_small):>7,.1f} {median(of_large):>7,.1f} "
            f"{ratio:>6.2f} (of the least {least:.2f})"
        )
        add_figure(f"{what}, large index relative to small", ratio)
        if what == "a question after one more file":
            verdict = "within" if ratio <= ONE_MORE_TARGET else "OVER"
            print(f"  {'':<40} {verdict} the target of {ONE_MORE_TARGET:g}")


@dataclass(slots=True)
class SearchCost:
    """Milliseconds of processor time that searches take."""

    question: list[float] = field(default_factory=list)
    one_more: list[float] = field(default_factory=list)
    nowhere: list[float] = field(default_factory=list)

    async def add(self, storage: LocalStorage, search: Tool, folder: str, number: int) -> None:
        """Ask a question, add a file, ask for its words, and ask for a word that is nowhere."""
        self.question.append(await milliseconds(search, f"planted {number % 3} line"))
        text = numbered_log(10**6 + number) + f"a late needle{number} of it\n"
        await storage.write([(f"{folder}/late-{number}.md", text)])
        self.one_more.append(await milliseconds(search, f"needle{number} planted"))
        self.nowhere.append(await milliseconds(search, "quicksilver"))


async def milliseconds(search: Tool, question: str) -> float:
    """Return the processor time that the search takes, in all threads."""
    begun = process_time()
    answer = await search({"query": question})
    took = (process_time() - begun) * 1e3
    [needle] = re.findall(r"needle\d+", question) or [""]
    if needle not in str(answer):
        raise SystemExit(f"the search did not find {needle}")
    return took


def numbered_log(number: int) -> str:
    """Return the log of one run; the first ones also have a line that questions find."""
    planted = f"planted {number % 3} line\n" if number < 3 * ANSWERS else ""
    return planted + log(number)[: CHARS - len(planted)]


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
    """Numbers of facts that were used again: *in_sight*, *asked* for, and *found*."""

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
