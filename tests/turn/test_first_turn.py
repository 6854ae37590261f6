"""A first turn with a long history estimates the text that it removes, and nothing else."""

from __future__ import annotations

import random
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from histories import assistant, conversation, step, user
from hypothesis import example, given
from hypothesis import strategies as st

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    LocalStorage,
    MemoryStorage,
    RatioGate,
    RentOrBuyGate,
    Result,
    SmartTruncate,
)
from ctxpipe.functions import count_tokens
from ctxpipe.messages import Message
from ctxpipe.presets import chat, coding_agent
from ctxpipe.stages.protocol import Stage
from ctxpipe.stages.reports import Outcome
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter

WINDOW = 20_000
WORDS = ["def", "return", "error", "src/a.py", "127.0.0.1", "0x7f3a", "class", "total_bytes"]


@pytest.fixture(autouse=True, scope="module")
def _loaded_encoding() -> None:
    """The tests count on the event loop, where loading the encoding would block."""
    TokenCounter().text("")


def log(seed: int, chars: int) -> str:
    seeded = random.Random(seed)
    lines = ""
    while len(lines) < chars:
        lines += f"{seeded.random():.6f} {' '.join(seeded.choices(WORDS, k=9))}\n"
    return lines[:chars]


def steps(number: int, chars: int, first: int = 0) -> list[list[Message]]:
    return [step(f"t{index}", result=log(index, chars)) for index in range(first, first + number)]


def long_history(number: int = 60, chars: int = 6_000) -> list[Message]:
    """About 2,500 tokens in each of *number* exchanges."""
    return conversation(user("go"), *steps(number, chars), assistant("Done."), user("Go on."))


def batch(**settings: Any) -> BatchOffload:
    return BatchOffload(MemoryStorage(), keep_recent=2, **settings)


def pipeline(*stages: Stage, counter: TokenCounter | None = None) -> ContextPipeline:
    return ContextPipeline(
        list(stages) or [batch()],
        counter=counter or TokenCounter(),
        budget=Budget(window=WINDOW),
    )


def estimated_stages(result: Result) -> list[str]:
    return [report.stage for report in result.reports if report.is_estimate]


async def test_the_report_of_a_first_long_turn_says_that_its_count_is_estimated():
    history = long_history()
    counter = TokenCounter()

    result = await pipeline(counter=counter).session("s").run(history)

    [report] = result.reports
    exact = count_tokens(history)
    assert report.is_estimate
    assert "an estimated " in str(report)
    assert report.tokens_before != exact
    assert report.tokens_before == pytest.approx(exact, rel=0.05)
    assert counter.encoded_chars < sum(len(str(message)) for message in history) / 3


async def test_the_context_that_a_first_long_turn_sends_is_counted_exactly():
    result = await pipeline().session("s").run(long_history())

    assert result.tokens_after == count_tokens(result.messages)
    assert result.reports[-1].tokens_after == result.tokens_after


async def test_stages_after_the_one_that_removes_the_text_have_exact_reports():
    truncate = SmartTruncate(archive=MemoryStorage())

    result = await pipeline(batch(), truncate).session("s").run(long_history())

    assert estimated_stages(result) == ["BatchOffload"]


async def test_a_run_without_a_session_estimates_the_same_way():
    result = await pipeline().run(long_history(), session_id="s")

    assert estimated_stages(result) == ["BatchOffload"]


async def test_the_second_turn_counts_everything_exactly():
    never = batch(gate=RentOrBuyGate(min_calls=1_000))
    for stage in (batch(), never):
        session = pipeline(stage).session("s")
        history = long_history()
        await session.run(history)
        history += [assistant("I see."), user("And now?")]

        result = await session.run(history)

        [report] = result.reports
        assert not report.is_estimate
        assert report.tokens_after == result.tokens_after == count_tokens(result.messages)


async def test_no_estimate_of_a_candidate_is_used_in_the_second_turn():
    """The gate remembers the tokens of its candidates: those that stay are counted again."""
    history = long_history()
    gate = RentOrBuyGate(alpha=1e9, min_calls=0)
    session = pipeline(batch(gate=gate)).session("s")
    first = await session.run(history)
    assert not first.changed
    assert first.tokens_after == count_tokens(history)

    again = await session.run([*history, assistant("I see."), user("And now?")])

    assert not again.reports[0].is_estimate
    assert again.reports[0].tokens_before == again.tokens_after == count_tokens(again.messages)


async def test_a_session_that_grew_turn_by_turn_never_estimates():
    session = pipeline().session("s")
    history = [user("go")]
    for exchange in steps(50, 6_000):
        history += exchange
        result = await session.run(history)
        assert not estimated_stages(result)


async def test_a_first_turn_with_only_new_messages_never_estimates():
    news = conversation(*(user(log(index, 6_000)) for index in range(60)))

    result = await pipeline(SmartTruncate(archive=MemoryStorage())).session("s").run(news)

    assert not estimated_stages(result)


async def test_a_short_history_is_counted_exactly_in_the_first_turn():
    history = long_history(8)
    assert count_tokens(history) < 1.1 * WINDOW
    truncate = SmartTruncate(archive=MemoryStorage())

    result = await pipeline(truncate, batch()).session("s").run(history)

    assert not estimated_stages(result)
    assert result.tokens_before == count_tokens(history)


async def test_a_context_with_too_few_samples_is_counted_exactly_in_a_small_window():
    history = long_history(36)
    assert 80_000 < count_tokens(history) < 90_000
    budget = Budget(window=2_000)

    result = await ContextPipeline([batch()], budget=budget).session("s").run(history)

    assert result.changed
    assert not estimated_stages(result)
    assert result.tokens_before == count_tokens(history)


async def test_a_refused_context_is_counted_exactly():
    result = await pipeline().session("s").run(long_history(), force=True)

    assert not estimated_stages(result)


async def test_a_counter_of_the_user_always_counts_exactly():
    counter = TokenCounter(len)

    result = await pipeline(counter=counter).session("s").run(long_history())

    assert not estimated_stages(result)


async def test_what_no_stage_removes_is_counted_exactly():
    history = long_history()

    result = await pipeline(batch(min_chars=10_000)).session("s").run(history)

    assert result.messages == history
    assert result.tokens_after == count_tokens(history)


async def test_two_processes_with_other_memories_report_the_same():
    history = long_history()
    trained = TokenCounter()
    trained.total(history[:30])
    trained.total(history[40:])

    first = await pipeline(counter=TokenCounter()).session("s").run(history)
    second = await pipeline(counter=trained).session("s").run(history)

    assert first.messages == second.messages
    assert [report.tokens_before for report in first.reports] == [
        report.tokens_before for report in second.reports
    ]


async def test_a_turn_after_one_that_failed_reports_the_same():
    class Failing(MemoryStorage):
        is_broken = True

        async def write(self, texts: Any, /) -> list[str]:
            if self.is_broken:
                raise OSError("the disk is full")
            return await super().write(texts)

    storage = Failing()
    stage = BatchOffload(storage, gate=RatioGate(0.2))
    session = ContextPipeline(
        [stage], budget=Budget(window=WINDOW), on_error="raise", counter=TokenCounter()
    ).session("s")
    history = long_history()
    with pytest.raises(OSError, match="the storage raised"):
        await session.run(history)
    storage.is_broken = False

    again = await session.run(history)
    fresh = (
        await pipeline(BatchOffload(MemoryStorage(), gate=RatioGate(0.2))).session("s").run(history)
    )

    assert again.tokens_before == fresh.tokens_before


@pytest.mark.parametrize(
    ("share", "is_estimate"), [(0.5, True), (0.95, False), (1.05, False), (1.5, True)]
)
async def test_a_gate_near_its_threshold_decides_by_exact_counts(share: float, is_estimate: bool):
    history = long_history()
    freed = count_tokens(history) * 57 // 60  # the last exchanges stay
    gate = RentOrBuyGate(min_tokens=int(freed * share), min_calls=0, free_calls=0)
    counter = TokenCounter()

    result = await pipeline(batch(gate=gate), counter=counter).session("s").run(history)

    [report] = result.reports
    assert (report.outcome is Outcome.CHANGED) == (share < 1)
    if report.outcome is Outcome.CHANGED:
        assert report.is_estimate == is_estimate


SIZES = st.sampled_from([40, 700, 5_000, 9_000, 60_000, 250_000])
EXCHANGES = st.lists(st.tuples(st.integers(0, 50), SIZES, st.booleans()), min_size=1, max_size=25)
STAGES = ["batch", "coding", "lines", "chat", "compact", "truncate"]


def stages_of(name: str, folder: Path) -> list[Stage]:
    storage = LocalStorage(folder)
    match name:
        case "batch":
            return [batch(gate=RentOrBuyGate(min_calls=0))]
        case "coding":
            return coding_agent(storage, work_dir=None, summarize=ExtractiveSummarizer())
        case "lines":
            return coding_agent(
                storage, work_dir=None, summarize=ExtractiveSummarizer(), old_exchanges="lines"
            )
        case "chat":
            return chat(storage, summarize=ExtractiveSummarizer())
        case "compact":
            return [Compact(ExtractiveSummarizer(), require_archive=False)]
        case _:
            return [SmartTruncate(require_archive=False)]


def without_times(result: Result) -> str:
    """The context without the times in the names of archives."""
    return re.sub(r"\d{8}T\d{6}Z[-\w]*", "TIME", str(result.messages))


@example(
    "batch", [(7, 9_000, False), *[(0, 700, False)] * 3, (0, 40, True)], 2_000
)  # the one long text has an estimate that is too high by 11 per cent
@given(st.sampled_from(STAGES), EXCHANGES, st.sampled_from([2_000, 8_000, 30_000]))
async def test_the_context_is_that_of_exact_counts(
    name: str, exchanges: list[tuple[int, int, bool]], window: int
):
    history = [user("go")]
    for number, (seed, chars, is_said) in enumerate(exchanges):
        history += step(f"t{number}", result=log(seed, chars))
        if is_said:
            history += [assistant(log(seed + 100, chars // 4)), user(f"Go on with {number}.")]
    contexts = []
    # Both write to the same folder: its name has tokens too, and a random name more or fewer.
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "files")
        for counter in (TokenCounter(), TokenCounter(TokenCounter().text)):
            shutil.rmtree(folder, ignore_errors=True)
            pipeline = ContextPipeline(
                stages_of(name, folder), counter=counter, budget=Budget(window=window)
            )
            session = pipeline.session("s")
            result = await session.run(history)
            contexts.append(without_times(result))
            assert result.tokens_after == count_tokens(result.messages)
            result = await session.run([*history, assistant("I see."), user("And now?")])
            contexts.append(without_times(result))

    assert contexts[:2] == contexts[2:]
