"""Compaction of real conversations: five times in a row, and what survives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from histories import said
from recorded import NIGHTLY, sample

from ctxpipe import Budget, ContextPipeline, LocalStorage
from ctxpipe.functions import load_archive
from ctxpipe.messages import Message, check, texts
from ctxpipe.placeholders.summaries import EVIDENCE, EVIDENCE_END, own_words, summary_body
from ctxpipe.stages.compact.stage import Breaker, Compact, Restore
from ctxpipe.stages.reading.what_applies import is_of_user
from ctxpipe.stages.reports import Compacted
from ctxpipe.turn.repair import repair

pytestmark = pytest.mark.shared

# Written without ctxpipe's own reading of tool calls, which is what is measured here.
ARGUMENTS = {"path", "file_path", "filePath", "filepaths", "notebook_path"}
COMMANDS = {"command", "cmd", "call", "input"}
NAMED = re.compile(r"(?<![\w:/.~@-])(?:[\w.~@-]*/)+[\w@-][\w.@-]*\.[a-z][a-z0-9]{0,4}(?![\w/])")


def transcript(path: Path) -> list[Message]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines[1:]]


def paths_in_inputs(messages: Sequence[Message]) -> set[str]:
    """The paths that tools were given.

    Path arguments, and names with a folder and an ending in command lines.
    """
    found: set[str] = set()
    for message in messages:
        content: Any = message["content"]
        for block in content if isinstance(content, list) else []:
            for key, value in block["input"].items() if block["type"] == "tool_use" else []:
                texts = (
                    [value] if isinstance(value, str) else value if isinstance(value, list) else []
                )
                for text in filter(lambda text: isinstance(text, str), texts):
                    found.update(
                        [text]
                        if key in ARGUMENTS
                        else NAMED.findall(text)
                        if key in COMMANDS
                        else []
                    )
    return {path.removeprefix("./").removeprefix("file://") for path in found}


def paths_in_block(block: str) -> set[str]:
    """The paths in a list by folder: ``folder/: name, name``."""
    lines = re.findall(r"^(.*?/): (.+)$", block, re.MULTILINE)
    return {
        (folder + name).removeprefix("./") for folder, names in lines for name in names.split(", ")
    }


def parts(messages: Sequence[Message], number: int) -> Iterator[list[Message]]:
    """*messages* in about *number* parts, each ending with the user."""
    part: list[Message] = []
    for message in messages:
        part.append(message)
        if len(part) > len(messages) / number and message["role"] == "user":
            yield part
            part = []
    if part:
        yield part


@dataclass
class Run:
    """A conversation that is compacted again and again."""

    name: str
    context: list[Message] = field(default_factory=list)
    seen: list[Message] = field(default_factory=list)
    details: list[Compacted] = field(default_factory=list)

    @property
    def block(self) -> str:
        text = said(message for message in self.context if summary_body(message) is not None)[0]
        return text.partition(EVIDENCE)[2].partition(EVIDENCE_END)[0]

    def shares(self) -> tuple[int, int, int]:
        """Paths in tool inputs; those in the block; those in the index that the block names."""
        paths = paths_in_inputs(self.seen)
        here = paths_in_block(self.block)
        index = re.search(r"^More paths: (.+)$", self.block, re.MULTILINE)
        listed = set(Path(index[1]).read_text(encoding="utf-8").splitlines()) if index else set()
        return len(paths), len(paths & here), len(paths & listed - here)


async def compacted(
    name: str, messages: list[Message], times: int, folder: Path, budget: Budget
) -> Run:
    run = Run(name)
    now = 0.0
    folder.mkdir(parents=True, exist_ok=True)
    stage = Compact(
        archive=LocalStorage(folder), restore=Restore(folder), breaker=Breaker(clock=lambda: now)
    )
    pipeline = ContextPipeline([stage], budget=budget)
    for part in parts(messages, times):
        run.seen += part
        now += 1000  # past every cooldown
        given = [*run.context, *part]
        result = await pipeline.run(given, session_id=name, force=True)
        report = result.reports[0]
        if report.first_changed_index is None:
            run.context = given
            continue
        assert isinstance(report.detail, Compacted)
        run.details.append(report.detail)
        run.context = result.messages
        check_context(run, given)
        assert report.detail.over_target or report.detail.tokens_after <= budget.target
        raw = repair(given, encoding=False)  # a few of them were recorded broken
        assert await load_archive(report.detail.archive or "") == [
            m for m in raw if m["role"] != "system"
        ]
    return run


def check_context(run: Run, given: Sequence[Message]):
    context = run.context
    detail = run.details[-1]
    assert check(context) == []
    assert sum(1 for message in context if summary_body(message) is not None) == 1
    assert "base64" not in json.dumps(context)
    assert context[-1]["role"] == given[-1]["role"]
    # A message may also have texts that a harness has written.
    requests = [
        [words for words in texts(message) if is_of_user(words)]
        for message in run.seen
        if is_of_user(own_words(message))
    ]
    text = "\n\n".join(said(context))
    for request in filter(None, requests[:1] + requests[-1:]):
        # The whole, or where it was cut its head and tail.
        assert request[0][:2666] in text, run.name
        assert request[-1][-1334:] in text, run.name
        if sum(map(len, request)) < 2_666:
            assert all(words in text for words in request), run.name
    assert detail.over_target == bool(detail.holds)


def longest(folder: Path, number: int) -> list[Path]:
    return sorted(folder.glob("*.jsonl"), key=lambda path: -path.stat().st_size)[:number]


async def test_five_compactions_in_a_row_over_the_longest_transcripts(shared, tmp_path, capsys):
    budget = Budget(window=100_000, trigger=60_000)
    table = []
    sums = [0, 0, 0]
    for path in longest(shared / "transcripts", 12 if NIGHTLY else 2):
        run = await compacted(path.stem, transcript(path), 5, tmp_path / path.stem, budget)
        total, here, listed = run.shares()
        sums = [one + another for one, another in zip(sums, (total, here, listed), strict=True)]
        assert len(run.details) >= 4, path.stem
        last = run.details[-1]
        over = f" over target: {last.holds}" if last.over_target else ""
        table.append(
            f"{path.stem:40} {len(run.details)} times, at last {last.tokens_before:6} → "
            f"{last.tokens_after:5} tokens; paths {total:3}: block {here:3}, index {listed:2}{over}"
        )
    with capsys.disabled():
        print("\n" + "\n".join(table))
    assert sums[1] >= 0.9 * sums[0]


@pytest.mark.usefixtures("shared")
async def test_paths_survive_on_recorded_conversations(tmp_path, capsys):
    budget = Budget()
    sums = [0, 0, 0]
    for path in sample(12):
        run = await compacted(path.stem, transcript(path), 1, tmp_path / path.stem, budget)
        sums = (
            [one + another for one, another in zip(sums, run.shares(), strict=True)]
            if run.details
            else sums
        )
    total, here, listed = sums
    with capsys.disabled():
        print(
            f"\n{total} paths in tool inputs: {here / total:.1%} in the block, "
            f"{listed / total:.1%} in the index"
        )
    assert here >= 0.9 * total
