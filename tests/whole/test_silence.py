"""No text of a conversation in logs, reports, spans and reprs, whatever fails."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from histories import assistant, conversation, step, thinking, tool_result, tool_use, user
from processes import python

from ctxpipe import (
    BatchOffload,
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Result,
    Skip,
    SmartTruncate,
    Stage,
    StorageError,
    Turn,
)
from ctxpipe.errors import SummaryFailed
from ctxpipe.functions import CompactResult
from ctxpipe.messages import Message, tool_calls, tool_results
from ctxpipe.stages.compact.restore import RestoredFile, RestoredFiles
from ctxpipe.stages.compact.stage import Breaker
from ctxpipe.stages.offload.gates import RatioGate
from ctxpipe.stages.reports import Outcome, StageReport
from ctxpipe.storage import FileText, Page
from ctxpipe.summarizers import ExtractiveSummarizer, PromptSummarizer, Retry, Summary
from ctxpipe.turn.state import Request

CANARY = "canary-4711"
SYSTEM = f"The system knows {CANARY}."
TOOLS: list[Any] = [{"name": "bash", "description": CANARY, "input_schema": {"type": "object"}}]


def secretive() -> list[Message]:
    """A conversation that says the canary wherever something can be said."""
    long = f"{CANARY} in a long line of a log\n" * 200
    return conversation(
        user(f"go and find {CANARY}"),
        *(
            step(
                f"t{n}", say=CANARY, think=CANARY, given={"command": f"echo {CANARY}"}, result=long
            )
            for n in range(4)
        ),
        assistant(thinking(CANARY), CANARY),
        user(CANARY),
    )


class LoudStorage(LocalStorage):
    """A storage whose errors quote what it was given, as those of many clients do."""

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        raise StorageError(f"cannot write {texts}")

    async def save(self, *given: Any) -> str:
        raise StorageError(f"cannot save {given}")


async def loud_stage(turn: Turn) -> Skip:
    raise ValueError(f"cannot work on {list(turn.messages)}")


async def chained_stage(turn: Turn) -> Skip:
    raise RuntimeError(str(list(turn.messages))) from KeyError(turn.messages)


async def odd_stage(turn: Turn) -> Any:
    return list(turn.messages)


async def breaking_stage(turn: Turn) -> Change:
    return Change([cast("Message", {"role": "narrator", "content": CANARY}), *turn.messages])


async def loud_summary(messages: Sequence[Message], /) -> Any:
    raise SummaryFailed(f"no summary of {list(messages)}")


async def loud_ask(prompt: str) -> str:
    raise RuntimeError(prompt)


def quoting(report: StageReport):
    raise RuntimeError(f"{CANARY} {report}")


def storage() -> LocalStorage:
    return LocalStorage(tempfile.mkdtemp())


def loud() -> LoudStorage:
    return LoudStorage(tempfile.mkdtemp())


ONCE = Retry(max_retries=0)
STAGES: dict[str, Callable[[], Stage]] = {
    "direct": lambda: DirectOffload(storage()),
    "batch": lambda: BatchOffload(storage(), gate=RatioGate(0), keep_recent=0),
    "compact": lambda: Compact(ExtractiveSummarizer(), archive=storage()),
    "truncate": lambda: SmartTruncate(archive=storage()),
    "loud": lambda: loud_stage,
    "chained": lambda: chained_stage,
    "odd": lambda: odd_stage,
    "breaking": lambda: breaking_stage,
    "direct, loud storage": lambda: DirectOffload(loud()),
    "batch, loud storage": lambda: BatchOffload(loud(), gate=RatioGate(0), keep_recent=0),
    "compact, loud archive": lambda: Compact(ExtractiveSummarizer(), archive=loud()),
    "compact, loud summarizer": lambda: Compact(
        loud_summary, archive=storage(), breaker=Breaker(retry=ONCE)
    ),
    "compact, loud model": lambda: Compact(
        PromptSummarizer(loud_ask), archive=storage(), breaker=Breaker(retry=ONCE)
    ),
    "truncate, loud archive": lambda: SmartTruncate(archive=loud()),
    "truncate, loud archive not required": lambda: SmartTruncate(
        archive=loud(), require_archive=False
    ),
}


def shown_of(*values: object) -> str:
    return "\n".join(f"{value!s}\n{value!r}" for value in values)


def logged(caplog: pytest.LogCaptureFixture, level: int = logging.INFO) -> str:
    ours = (record for record in caplog.records if record.name.startswith("ctxpipe"))
    records = [record for record in ours if record.levelno >= level]
    assert all(len(record.getMessage()) < 300 for record in records)
    assert not any(record.exc_info for record in records)
    return "\n".join(record.getMessage() for record in records)


@pytest.mark.parametrize("name", STAGES)
async def test_whatever_a_stage_does_or_raises_nothing_of_the_conversation_is_told(
    name: str, caplog
):
    pipeline = ContextPipeline([STAGES[name]()], budget=Budget(window=1_000), on_report=quoting)
    session, history = pipeline.session("s"), secretive()
    told: list[Result] = []

    with caplog.at_level(logging.DEBUG):
        for end in (4, len(history)):
            told.append(await session.run(history[:end], system=SYSTEM, tools=TOOLS, force=True))
        told.append(await pipeline.plan(history, session_id="s", force=True))

    reports = [report for result in told for report in result.reports]
    assert CANARY not in logged(caplog)
    assert CANARY not in shown_of(
        pipeline, session, *told, *reports, *(report.detail for report in reports)
    )
    assert not any(CANARY in report.reason for report in reports)


async def test_a_session_that_cannot_use_its_journal_tells_nothing_of_the_conversation(
    caplog,
):
    asked: list[object] = []

    class LoudJournal(LocalStorage):
        async def append(self, *given: Any, **_: Any) -> bool:
            asked.append(given)
            raise StorageError(f"cannot append {CANARY}")

    session = ContextPipeline([DirectOffload(storage())]).session(
        "s", journal=LoudJournal(tempfile.mkdtemp())
    )

    result = await session.run(secretive()[:3])

    assert asked
    assert CANARY not in logged(caplog)
    assert CANARY not in shown_of(result, session)
    assert not any(CANARY in notice for notice in result.notices)


async def test_reprs_of_what_a_stage_sees_hold_no_messages():
    seen: list[object] = []

    async def look(turn: Turn) -> Change:
        change = Change(list(turn.messages[:1]))
        seen.extend([turn, change, turn.ledger])
        return change

    pipeline = ContextPipeline([look])
    result = await pipeline.run(secretive(), session_id="s", system=SYSTEM, tools=TOOLS)
    seen += [*pipeline._memories.values(), *result.reports, Request(SYSTEM, TOOLS, {"a": CANARY})]

    assert CANARY not in shown_of(*seen)
    assert all(len(repr(value)) < 1_000 for value in seen)


async def test_three_hundred_offloaded_results_are_one_short_line(
    caplog,
):
    history = conversation(user("go"), *(step(f"t{n}", result="x" * 2_000) for n in range(300)))
    pipeline = ContextPipeline([BatchOffload(storage(), gate=RatioGate(0), keep_recent=0)])

    with caplog.at_level(logging.INFO, "ctxpipe"):
        result = await pipeline.run(history, session_id="s")

    assert result.reports[0].outcome is Outcome.CHANGED
    [line] = [record.getMessage() for record in caplog.records if record.name == "ctxpipe"]
    assert len(line) < 200
    assert "blocks moved to files" in line


def test_spans_hold_nothing_of_the_conversation_even_of_an_error_that_is_raised():
    script = f"""
import anyio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ctxpipe import ContextPipeline
async def loud(turn):
    raise ValueError(str(turn.messages))
async def main():
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    history = [{{"role": "user", "content": "{CANARY}"}}]
    await ContextPipeline([loud]).run(history, session_id="s")
    try:
        await ContextPipeline([loud], on_error="raise").run(history, session_id="s")
    except ValueError:
        print("raised")
    print(*[span.to_json() for span in exporter.get_finished_spans()])
anyio.run(main)
"""
    told = python(script)

    assert "raised" in told
    assert "ctxpipe.tokens_before" in told
    assert CANARY not in told


@pytest.mark.parametrize(
    "shown",
    [
        RestoredFile("a.txt", CANARY, 3),
        RestoredFiles((RestoredFile("a.txt", CANARY, 3),)),
        FileText("/w/a.txt", CANARY),
        Page(CANARY, 0, 9),
        Summary(CANARY),
        CompactResult([user(CANARY)]),
        *tool_calls([assistant(tool_use("t", "bash", {"command": CANARY}))]),
        *tool_results([user(tool_result("t", CANARY))]),
    ],
    ids=lambda shown: type(shown).__name__,
)
def test_reprs_of_what_holds_texts_show_none(shown: object):
    assert CANARY not in repr(shown)


async def test_folders_of_a_storage_are_told_at_debug_only(tmp_path, caplog):
    root = tmp_path / "acme-merger"
    root.mkdir()
    (root / "s").write_text("no folder")
    pipeline = ContextPipeline([DirectOffload(LocalStorage(root), min_chars=100)])

    result = await pipeline.run([user("go"), *step("t", result="x " * 200)], session_id="s")

    assert result.reports[0].outcome is Outcome.FAILED
    told = [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]
    assert told
    assert "acme-merger" not in "\n".join([*told, str(result), *map(str, result.reports)])
