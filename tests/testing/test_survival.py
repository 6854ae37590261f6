"""The assertion that texts stay in the context of a conversation."""

from __future__ import annotations

import pytest
from histories import assistant, conversation, user
from rules import ERROR, PROHIBITION, rules_conversation

from ctxpipe import Budget, ContextPipeline, LocalStorage, MemoryStorage, presets
from ctxpipe.errors import InvalidHistory, SettingsError
from ctxpipe.stages.protocol import Change, Turn
from ctxpipe.stages.reports import StageReport
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.testing import TextsLost, assert_survives, assert_survives_async

HISTORY = rules_conversation()
OLD_LINE = "value_5_1 = compute_1()"


def coding(storage=None, window: int = 1_000_000) -> ContextPipeline:
    stages = presets.coding_agent(
        storage or MemoryStorage(), work_dir=None, summarize=ExtractiveSummarizer()
    )
    return ContextPipeline(stages, budget=Budget(window=window))


async def drop_old(turn: Turn) -> Change | None:
    """Stage that drops everything but the first message and the last two, and keeps no file."""
    if len(turn.messages) < 40:
        return None
    return Change([turn.messages[0], *turn.messages[-2:]])


def test_a_text_that_stays_passes_without_asyncio():
    assert_survives(HISTORY, coding(), texts=[PROHIBITION, "Never force-push"])


@pytest.mark.anyio
async def test_a_text_that_stays_passes_in_an_async_test():
    await assert_survives_async(HISTORY, coding(), texts=[PROHIBITION])


@pytest.mark.anyio
async def test_a_lost_text_fails_in_an_async_test():
    with pytest.raises(TextsLost, match="value_5_1"):
        await assert_survives_async(HISTORY, coding(window=9_000), texts=[OLD_LINE])


@pytest.mark.parametrize("make", [lambda _path: MemoryStorage(), LocalStorage])
def test_the_failure_names_the_text_the_call_the_stage_and_the_file(make, tmp_path):
    with pytest.raises(TextsLost) as raised:
        assert_survives(
            HISTORY, coding(make(tmp_path / "store"), window=9_000), texts=[PROHIBITION, OLD_LINE]
        )

    message = str(raised.value)
    assert message.startswith("1 of 2 texts left the context:")
    assert f"- {OLD_LINE!r} came before call 6 and was gone at call " in message
    assert "removed by Compact; it is in the file assert-survives/" in message
    assert PROHIBITION not in message


def test_a_text_that_a_stage_of_ones_own_deletes_is_in_no_file():
    pipeline = ContextPipeline([drop_old])

    with pytest.raises(TextsLost) as raised:
        assert_survives(HISTORY, pipeline, texts=[ERROR])

    assert "removed by drop_old; it is in no file" in str(raised.value)


def test_a_change_that_was_vetoed_removes_nothing():
    def refuse(_turn: Turn, _change: Change) -> str:
        return "not today"

    assert_survives(HISTORY, ContextPipeline([drop_old], veto=refuse), texts=[ERROR])


def test_the_settings_of_the_pipeline_apply_and_its_reports_are_passed_on():
    reports: list[StageReport] = []
    pipeline = ContextPipeline([drop_old], on_report=reports.append)

    with pytest.raises(TextsLost):
        assert_survives(HISTORY, pipeline, texts=[ERROR])

    assert any(report.stage == "drop_old" and report.tokens_saved > 0 for report in reports)


def test_a_text_is_looked_for_from_the_first_call_after_it():
    history = conversation(user("Hi."), assistant("Yes."), user("Never push."))

    assert_survives(history, ContextPipeline(), texts=["Never push"])


def test_a_text_that_is_nowhere_in_the_history_fails():
    with pytest.raises(TextsLost, match="1 text not in the history at all: 'Never say never'"):
        assert_survives(HISTORY, coding(), texts=[PROHIBITION, "Never say never"])


def test_each_line_of_a_text_must_stay():
    text = f"{PROHIBITION}\n---\n{OLD_LINE}"

    with pytest.raises(TextsLost, match="1 of 1 text left the context"):
        assert_survives(HISTORY, coding(window=9_000), texts=[text])


def test_only_the_first_of_many_lost_texts_are_described():
    texts = [f"value_5_{n} = compute_{n}()" for n in range(9)]

    with pytest.raises(TextsLost) as raised:
        assert_survives(HISTORY, coding(window=9_000), texts=texts)

    assert str(raised.value).splitlines()[-1] == "and 4 more"


def test_the_history_and_the_memory_of_the_pipeline_stay_as_they_are():
    history = rules_conversation(calls=20)
    pipeline = coding(window=9_000)
    before = str(history)

    for _ in range(2):
        assert_survives(history, pipeline, texts=[PROHIBITION])

    assert str(history) == before


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        ("Never push.", "texts is str; give a list"),
        (None, "texts is NoneType"),
        ([], "nothing would be checked"),
        ([7], "texts holds int"),
        (["Never push.", "---"], "no word to look for"),
    ],
)
def test_texts_that_cannot_be_looked_for_are_refused(texts, reason):
    with pytest.raises(SettingsError, match=reason):
        assert_survives(HISTORY, coding(), texts=texts)


def test_wrong_arguments_are_refused():
    with pytest.raises(SettingsError, match="pipeline"):
        assert_survives(HISTORY, [drop_old], texts=["a"])  # type: ignore[arg-type]
    with pytest.raises(InvalidHistory):
        assert_survives("Never push.", coding(), texts=["a"])  # type: ignore[arg-type]
