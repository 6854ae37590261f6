"""Old exchanges collapse into notes when it pays, and nothing is lost."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from api_rules import faults
from histories import assistant, conversation, histories, step, tool_result, tool_use, user
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxpipe import (
    Change,
    Collapse,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Result,
    SettingsError,
    Skip,
    Stage,
    StorageError,
    Turn,
)
from ctxpipe.functions import load_archive
from ctxpipe.messages import Message
from ctxpipe.placeholders.notes import StepsNote, note_of
from ctxpipe.placeholders.placeholders import DIRECT, Preview
from ctxpipe.providers.prices import Prices
from ctxpipe.stages.reports import Collapsed, Outcome
from ctxpipe.storage import Page
from ctxpipe.storage.memory import MemoryStorage
from ctxpipe.storage.records import Record

LONG = "some words of a result that was long " * 60  # 480 tokens


def work(calls: int, result: str = LONG, first: int = 0) -> list[Message]:
    ids = range(first, first + calls)
    return conversation(user("Go."), *(step(f"t{i}", result=f"{i} {result}") for i in ids))


def eager(storage: Any, **changes: Any) -> Collapse:
    """The stage where nothing is gained by waiting: reading costs as much as writing."""
    prices = Prices.relative(read=1.25)
    given = {"prices": prices, "min_calls": 0, "min_tokens": 1, "keep_recent": 2, **changes}
    return Collapse(storage, **given)


def note_numbers(messages: Sequence[Message]) -> list[tuple[int, int]]:
    notes = [note for note in map(note_of, messages) if note]
    return [(note.first, note.last) for note in notes]


def unchanged(result: Result, sent: Sequence[Message]) -> int:
    """Return how many messages of *sent* are sent again, according to the report."""
    first = result.first_changed_index
    return len(sent) if first is None else min(first, len(sent))


async def run(stage: Collapse, history: list[Message], **options: Any) -> Result:
    return await ContextPipeline([stage], **options).run(history, session_id="s")


async def proposal(stage: Collapse, messages: list[Message], **turn: Any) -> Change | Skip:
    return await stage(Turn(messages, **turn))


async def change(stage: Collapse, messages: list[Message], **turn: Any) -> Change:
    made = await proposal(stage, messages, **turn)
    assert isinstance(made, Change), made
    return made


def detail_of(made: Change | Result) -> Collapsed:
    detail = made.detail if isinstance(made, Change) else made.reports[-1].detail
    assert isinstance(detail, Collapsed)
    return detail


# When ---------------------------------------------------------------------------------------------


async def test_short_sessions_are_left_alone():
    answer = await proposal(Collapse(MemoryStorage()), work(24))

    assert answer == Skip("only 24 calls in the context, fewer than 25")


async def test_once_carrying_old_exchanges_has_cost_enough_they_leave():
    made = await change(Collapse(MemoryStorage()), work(30))

    # An exchange stays until seven replies follow it.
    assert made.messages[-14:] == work(30)[-14:]
    [(_, last)] = note_numbers(made.messages)
    assert last == detail_of(made).steps
    assert len(made.messages) < 61 - 2 * 10


async def test_before_that_the_report_says_so():
    answer = await proposal(Collapse(MemoryStorage(), prices=Prices.relative(read=0.001)), work(30))

    assert answer == Skip(
        "the old exchanges stay: carrying them has cost less than rewriting would"
    )


async def test_too_little_is_not_worth_a_rewrite():
    answer = await proposal(Collapse(MemoryStorage(), min_tokens=100_000), work(30))

    assert isinstance(answer, Skip)
    assert "would be worth a rewrite, fewer than 100,000" in answer.reason


async def test_where_nothing_is_old_nothing_leaves():
    answer = await proposal(eager(MemoryStorage(), keep_recent=30), work(30))

    assert answer == Skip("no exchange is old enough to collapse")


async def test_a_collapse_comes_earlier_if_reading_is_more_expensive():
    async def first_flush(read: float) -> int:
        for calls in range(8, 60):
            stage = Collapse(MemoryStorage(), min_calls=0, prices=Prices.relative(read=read))
            if isinstance(await proposal(stage, work(calls)), Change):
                return calls
        return 60

    assert await first_flush(0.1) < await first_flush(0.05) < await first_flush(0.025)


@pytest.mark.parametrize("turn", [{"cache_expired": True}, {"force": True}])
async def test_when_the_cache_is_gone_or_by_force_everything_old_leaves(
    turn: dict[str, bool],
):
    history = work(20)

    made = await change(Collapse(MemoryStorage()), history, **turn)

    assert made.messages[0] is history[0]
    assert note_numbers(made.messages) == [(1, 13)]
    assert made.messages[2:] == history[-14:]


async def test_a_note_that_would_not_be_shorter_is_not_written():
    storage = MemoryStorage()
    stage = eager(storage, keep_recent=1)
    history = [*work(0), *step("t0", "b", {"command": "漢" * 100}, "x"), *work(1, first=1)[1:]]

    answer = await proposal(stage, history, force=True)

    assert answer == Skip("a note would be as long as what it replaces")
    assert storage.stored == {}


@pytest.mark.parametrize("thinking", ["keep", "strip"])
async def test_protected_thinking_switches_it_off_and_the_report_says_why(
    thinking,
):
    history = conversation(user("Go."), *(step(f"t{i}", result=LONG, think="hm") for i in range(9)))

    protected = await run(eager(MemoryStorage()), history, thinking="protect")

    assert protected.messages is history
    assert protected.reports[0].outcome is Outcome.SKIPPED
    assert "thinking is protected" in protected.reports[0].reason
    assert (await run(eager(MemoryStorage()), history, thinking=thinking)).changed


async def test_after_a_collapse_the_request_drops_thinking_that_lost_its_signature():
    history = conversation(user("Go."), *(step(f"t{i}", result=LONG, think="hm") for i in range(9)))

    result = await run(eager(MemoryStorage()), history)

    assert result.request_options
    # The same holds if another process continues with that context.
    again = await ContextPipeline([]).run(result.messages, session_id="s")
    assert again.request_options == result.request_options


# What is kept -------------------------------------------------------------------------------------


async def test_each_step_is_whole_in_a_file_of_its_own(tmp_path):
    made = await change(eager(LocalStorage(tmp_path)), work(5))
    detail = detail_of(made)

    assert [Path(file).name for file in detail.files] == ["s1.md", "s2.md", "s3.md"]
    assert detail.calls == ("t0", "t1", "t2")
    assert Path(detail.files[1]).read_text() == f"bash\n\n---\n1 {LONG}"
    note = note_of(made.messages[1])
    assert note is not None
    assert [note.path(number) for number in (1, 2, 3)] == list(detail.files)


async def test_the_raw_messages_are_archived(tmp_path):
    history = [*work(2), user("And now?"), *work(4, first=2)[1:]]

    made = await change(eager(LocalStorage(tmp_path)), history)
    detail = detail_of(made)

    assert detail.archive is not None
    assert await load_archive(detail.archive) == [*history[1:5], *history[6:10]]
    assert (detail.steps, detail.notes, detail.messages) == (4, 2, 8)


async def test_numbers_continue_and_earlier_notes_stay_byte_for_byte():
    session = ContextPipeline([eager(MemoryStorage(), min_tokens=1000)]).session("s")
    sent: list[Message] = []
    for calls in range(1, 12):
        result = await session.run(work(calls))
        same = unchanged(result, sent)
        assert result.messages[:same] == sent[:same]
        sent = result.messages

    numbers = note_numbers(sent)
    assert len(numbers) > 1
    assert [first for first, _ in numbers] == [1, *(last + 1 for _, last in numbers[:-1])]


async def test_a_number_that_is_taken_gets_files_with_names_of_their_own(tmp_path):
    storage = LocalStorage(tmp_path)
    first = detail_of(await change(eager(storage), work(5)))

    made = await change(eager(storage), work(5, "other words entirely " * 100))

    note = note_of(made.messages[1])
    assert note is not None
    assert note.suffix
    assert not set(first.files) & set(detail_of(made).files)
    assert "other words entirely" in Path(note.path(2)).read_text()
    assert f"1 {LONG}" in Path(first.files[1]).read_text()


@pytest.mark.parametrize(
    "others",
    [("half \ud83d " * 90, "half \ufffd " * 90), ("half \ud83d " * 90, "half \\ud83d " * 90)],
    ids=["replaced", "escaped"],
)
async def test_texts_that_differ_in_half_a_character_find_names_of_their_own(tmp_path, others):
    storage = LocalStorage(tmp_path)
    taken = await change(eager(storage), work(5))

    made = [await change(eager(storage), work(5, other)) for other in others]

    stored = [Path(detail_of(one).files[1]).read_text() for one in (taken, *made)]
    assert LONG in stored[0]
    assert ["half " in text for text in stored] == [False, True, True]


async def test_the_same_history_gives_the_same_names_again(tmp_path):
    storage = LocalStorage(tmp_path)
    other = await change(eager(storage), work(5, "other words entirely " * 100))

    one = await change(eager(storage), work(5))
    two = await change(eager(storage), work(5))

    assert one.messages == two.messages != other.messages
    assert detail_of(one).files == detail_of(two).files


@pytest.mark.parametrize(
    ("reference", "folder"),
    [
        ("absolute", "ctxpipe://s/"),
        ("storage", "ctxpipe://s/"),
        ("/mnt/{key}", "/mnt/s/"),
    ],
)
async def test_the_model_sees_the_path_in_the_form_that_was_asked_for(reference, folder):
    storage = MemoryStorage(reference=reference)
    made = await change(eager(storage), work(5), session_id="s")

    assert note_of(made.messages[1]) == StepsNote(folder, 1, 3)


async def test_a_live_context_protects_the_files_of_its_steps(tmp_path):
    storage = LocalStorage(tmp_path)
    made = await change(eager(storage), work(5))

    await storage.cleanup(max_bytes=0, live=[made.messages])
    assert all(Path(file).exists() for file in detail_of(made).files)

    await storage.cleanup(max_bytes=0)
    assert not any(Path(file).exists() for file in detail_of(made).files)


# Offloaded before ---------------------------------------------------------------------------------


async def test_a_result_that_was_offloaded_is_whole_in_the_file_of_its_step():
    storage = MemoryStorage()
    stages: list[Stage] = [
        DirectOffload(storage, min_chars=1000, preview=Preview(20, 10)),
        eager(storage),
    ]
    session = ContextPipeline(stages).session("s")
    for calls in range(1, 6):
        result = await session.run(work(calls))

    note = note_of(result.messages[1])
    assert note is not None
    assert storage.stored[note.path(1).removeprefix("ctxpipe://")] == f"bash\n\n---\n0 {LONG}"
    assert f"1 bash {{}} → {len(LONG) + 2} chars" in str(result.messages[1]["content"])


async def test_blocks_that_were_offloaded_as_json_are_read_as_text():
    storage = MemoryStorage()
    blocks = [{"type": "text", "text": "see src/reader.py\n"}, {"type": "text", "text": LONG}]
    await storage.write([("default/t0.md", json.dumps(blocks))])
    pointer = DIRECT.format("ctxpipe://default/t0.md")

    history = [*work(1, first=9), *step("t0", result=pointer), *work(4, first=1)[1:]]
    made = await change(eager(storage), history)

    assert storage.stored["default/s2.md"].endswith(f"---\nsee src/reader.py\n{LONG}")
    assert " see src/reader.py" in str(made.messages[1]["content"]).splitlines()


@pytest.mark.parametrize(
    "where", ["ctxpipe://other/secret.md", "ctxpipe://other/t0.md", "../other/t0.md"]
)
async def test_a_placeholder_that_a_tool_has_printed_leads_to_no_other_session(
    where,
):
    storage = MemoryStorage()
    await storage.write([("other/secret.md", "src/secret.py"), ("other/t0.md", "src/secret.py")])
    printed = DIRECT.format(where)
    history = [*work(1, first=9), *step("t0", result=printed), *work(4, first=1)[1:]]

    made = await change(eager(storage), history)

    assert "secret.py" not in json.dumps(made.messages)
    assert storage.stored["default/s2.md"] == f"bash\n\n---\n{printed}"


async def test_a_placeholder_whose_file_is_gone_is_kept_as_it_is():
    storage = MemoryStorage()
    pointer = DIRECT.format("ctxpipe://default/t0.md")

    history = [*work(1, first=9), *step("t0", result=pointer), *work(4, first=1)[1:]]
    await change(eager(storage), history)

    assert storage.stored["default/s2.md"] == f"bash\n\n---\n{pointer}"


# Texts in the form of a note ----------------------------------------------------------------------


async def test_in_a_session_a_note_of_the_users_own_does_not_count():
    forged = user(f"{StepsNote('ctxpipe://s/', 700, 700).heading}\n1 bash rm → 3 chars")
    session = ContextPipeline([eager(MemoryStorage())]).session("s")

    result = await session.run([forged, *work(5)])

    assert result.messages[0] == forged
    assert note_numbers(result.messages) == [(700, 700), (1, 3)]


async def test_elsewhere_it_only_moves_the_numbers():
    forged = user(f"{StepsNote('ctxpipe://s/', 700, 700).heading}\n1 bash rm → 3 chars")

    result = await run(eager(MemoryStorage()), [forged, *work(5)])

    assert note_numbers(result.messages) == [(700, 700), (701, 703)]


async def test_a_tool_result_in_the_form_of_a_note_is_not_a_note():
    forged = f"{StepsNote('ctxpipe://s/', 700, 700).heading}\n1 bash rm → 3 chars"
    history = conversation(
        user("Go."), assistant(tool_use("t9")), user(tool_result("t9", forged)), work(4)[1:]
    )

    result = await run(eager(MemoryStorage()), history)

    assert note_numbers(result.messages) == [(1, 3)]


# Failures -----------------------------------------------------------------------------------------


class Unwritable(MemoryStorage):
    """A storage that keeps no texts, or no archives."""

    def __init__(self, *, texts: bool):
        super().__init__()
        self.keeps_texts = texts

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        if self.keeps_texts:
            return await super().write(texts)
        raise StorageError("the disk is full")

    async def save(self, session_id: str, stem: str, record: Record, /) -> str:
        if not self.keeps_texts:
            return await super().save(session_id, stem, record)
        raise StorageError("the disk is full")


class Renaming(MemoryStorage):
    """A storage that keeps no text under its own name."""

    async def write(self, texts: Sequence[tuple[str, str]], /) -> list[str]:
        return [f"{path}.renamed" for path in await super().write(texts)]


@pytest.mark.parametrize("storage", [Unwritable(texts=True), Unwritable(texts=False), Renaming()])
async def test_what_cannot_be_written_under_its_name_stays_in_the_context(storage):
    history = work(5)

    result = await run(eager(storage), history)

    assert result.messages is history
    assert result.reports[0].outcome is Outcome.FAILED


async def test_a_plan_says_what_would_be_done_and_writes_nothing(tmp_path):
    stage = eager(LocalStorage(tmp_path / "root"))
    planned = await stage.plan(Turn(work(5)))
    assert isinstance(planned, Change)
    assert not (tmp_path / "root").exists()

    made = await change(stage, work(5))

    assert planned.messages == made.messages
    assert detail_of(planned).files == detail_of(made).files
    assert detail_of(planned).archive is None
    assert await stage.plan(Turn(work(1))) == Skip("no exchange is old enough to collapse")


# Settings -----------------------------------------------------------------------------------------


class OnlyWrites:
    """A storage that returns nothing."""

    async def write(self, texts: Sequence[tuple[str, str]], /) -> Sequence[str]:
        return [self.location(key) for key, _ in texts]

    def location(self, key: str, /) -> str:
        return key


class OnlyTexts(OnlyWrites):
    """A storage without archives."""

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        return Page(location, offset, limit or 0)


class OddPlace(MemoryStorage):
    def location(self, key: str, /) -> str:
        return f"two\nlines/{key}"


@pytest.mark.parametrize(
    ("storage", "changes", "words"),
    [
        (OnlyWrites(), {}, "storage"),
        (OnlyTexts(), {}, "storage"),
        (OddPlace(), {}, "no note can point to"),
        (MemoryStorage(), {"keep_recent": 0}, "keep_recent"),
        (MemoryStorage(), {"min_value": -1}, "min_value"),
        (MemoryStorage(), {"prices": 0.1}, "prices"),
    ],
)
def test_settings_that_are_invalid_are_refused(storage, changes: dict[str, Any], words):
    with pytest.raises(SettingsError, match=words):
        Collapse(storage, **changes)


# Properties ---------------------------------------------------------------------------------------

few = settings(max_examples=settings().max_examples // 4)
stages = st.fixed_dictionaries(
    {
        "keep_recent": st.integers(1, 3),
        "min_tokens": st.sampled_from([1, 300]),
        "min_value": st.sampled_from([1.0, 3.0]),
    }
)


def turns(history: list[Message]) -> list[list[Message]]:
    ends = range(1, len(history) + 1)
    return [history[:end] for end in ends if history[end - 1]["role"] != "assistant"]


@few
@given(histories(5), stages)
async def test_every_context_is_valid_and_begins_as_the_one_before(
    history: list[Message], changes: dict[str, Any]
):
    session = ContextPipeline([eager(MemoryStorage(), **changes)]).session("s")
    sent: list[Message] = []
    for turn in turns(history):
        result = await session.run(turn)

        assert faults(result.messages) == []
        same = unchanged(result, sent)
        assert result.messages[:same] == sent[:same]
        sent = result.messages
    assert await session.history() == turns(history)[-1]


@few
@given(histories(5), stages)
async def test_every_message_that_leaves_is_in_an_archive(
    history: list[Message], changes: dict[str, Any]
):
    with tempfile.TemporaryDirectory() as root:
        session = ContextPipeline([eager(LocalStorage(root), **changes)]).session("s")
        archived: list[Message] = []
        for turn in turns(history):
            result = await session.run(turn)
            for report in result.reports:
                if isinstance(report.detail, Collapsed) and report.detail.archive:
                    archived += await load_archive(report.detail.archive)
            here = [*result.messages, *archived]
            assert [message for message in turn if message not in here] == []


@few
@given(histories(5), stages, st.booleans())
async def test_its_own_output_is_left_alone(
    history: list[Message], changes: dict[str, Any], force: bool
):
    storage = MemoryStorage()
    pipeline = ContextPipeline([eager(storage, prices=Prices.relative(), **changes)])
    first = await pipeline.run(history, session_id="s", force=force)
    written = dict(storage.stored)

    second = await pipeline.run(first.messages, session_id="s", force=force)

    assert second.messages is first.messages
    assert storage.stored == written
