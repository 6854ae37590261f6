from __future__ import annotations

import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from histories import assistant, chat, conversation, histories, step, text, tool_result, tool_use, user
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Offloaded,
    Preview,
    Session,
    SmartTruncate,
    StorageError,
    Truncated,
)
from ctxpipe.messages import Message
from ctxpipe.runner import Record, Request, Step
from ctxpipe.stage import Stage
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.undo import Undo, restored, shortened, undo_of

LONG = "a long line of output\n" * 200
NO_STORAGE: Any = None


async def taken_apart(history: list[Message], *stages: Stage) -> tuple[list[Message], list[Step]]:
    """The context that *stages* make of *history*, by force, and the changes on the way."""
    pipeline = ContextPipeline(stages, on_error="raise")
    record: Record = pipeline._runner.new_record()
    result = await pipeline._runner.run(history, "s", record, Request(force=True))
    return result.messages, record.steps


def written(undos: Sequence[Undo]) -> list[Undo]:
    """*undos* as a journal would give them back."""
    values: list[dict[str, Any]] = json.loads(json.dumps([{n: getattr(u, n) for n in Undo.__slots__} for u in undos]))
    return [Undo(**{**value, "items": tuple(value["items"])}) for value in values]


async def check_way_back(history: list[Message], storage: LocalStorage, *stages: Stage) -> list[Message]:
    """Take *history* apart and put it together again; the context that stood between."""
    context, steps = await taken_apart(history, *stages)
    assert steps
    assert await restored(context, written(list(map(undo_of, steps))), storage) == history
    return context


# Files ------------------------------------------------------------------------------------------------------------


CONTENTS: dict[str, Any] = {
    "text": LONG,
    "blocks": [text(LONG), text("and more")],
    "blocks around a picture": [text(LONG), {"type": "image", "source": {"type": "url", "url": "u"}}, text("after")],
    "a lone surrogate": LONG + "\ud83d",
    "a text that only looks escaped": LONG + "\\ud83d",
    "blocks with a lone surrogate": [text(LONG + "\ud83d")],
    "line ends of all kinds": LONG + "a\r\nb\rc\x85d\u2028e\n\n",
}


@pytest.mark.parametrize("preview", [None, Preview()])
@pytest.mark.parametrize("name", CONTENTS)
async def test_an_offloaded_result_comes_back(name: str, preview: Preview | None, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    history = conversation(user("go"), step("t1", result=CONTENTS[name]))

    context = await check_way_back(history, storage, DirectOffload(storage, preview=preview))

    assert len(json.dumps(context)) < len(json.dumps(history))


async def test_results_offloaded_in_a_batch_come_back(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    history = conversation(user("go"), *(step(f"t{i}", result=LONG + str(i)) for i in range(5)), assistant("done"))

    await check_way_back(history, storage, BatchOffload(storage))


async def test_what_a_batch_has_written_is_gone_through_once_however_many_results_left(tmp_path: Path) -> None:
    class Counted(tuple[str, ...]):
        times = 0

        def __iter__(self) -> Iterator[str]:
            type(self).times += 1
            return super().__iter__()

    history = conversation(user("Go."), *(step(f"t{i}", result="x" * 500) for i in range(9)))
    _, [taken] = await taken_apart(history, BatchOffload(LocalStorage(tmp_path), keep_recent=1))
    written = cast("Offloaded", taken.detail)

    undo_of(replace(taken, detail=replace(written, files=Counted(written.files))))

    assert len(written.files) == 8
    assert Counted.times == 1


async def test_an_input_with_two_long_texts_comes_back(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    given_input = {"path": "a.py", "edits": [{"old": LONG, "new": LONG + "new"}]}
    history = conversation(user("go"), step("t1", "Edit", given_input), assistant("done"), user("thanks"))

    await check_way_back(history, storage, BatchOffload(storage, inputs=frozenset({"Edit"}), keep_recent=0))


async def test_a_missing_file_is_an_error_that_names_the_message(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    history = conversation(user("go"), step("t1", result=LONG))
    context, steps = await taken_apart(history, DirectOffload(storage))
    Path(cast("Offloaded", steps[0].detail).files[0]).unlink()

    with pytest.raises(StorageError, match="block 0 of message 2 of the history"):
        await restored(context, list(map(undo_of, steps)), storage)


@pytest.mark.parametrize("content", [LONG, [text(LONG)]])
async def test_a_changed_file_is_an_error_that_names_the_message(content: Any, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    history = conversation(user("go"), step("t0"), step("t1", result=content))
    context, steps = await taken_apart(history, DirectOffload(storage))
    Path(cast("Offloaded", steps[0].detail).files[0]).write_text("something else")

    with pytest.raises(StorageError, match="block 0 of message 4 of the history"):
        await restored(context, list(map(undo_of, steps)), storage)


# Archives ---------------------------------------------------------------------------------------------------------


async def test_a_compacted_history_comes_back(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    history = conversation(user("go"), *(step(f"t{i}", result=LONG) for i in range(5)), user("and now?"))

    context = await check_way_back(history, storage, Compact(ExtractiveSummarizer(), storage))

    assert len(context) < len(history)


async def test_a_truncated_history_comes_back(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    steps = (step(f"t{i}", "ls", {"path": f"d{i}"}, LONG, say=f"step {i}") for i in range(40))
    history = conversation(user("go"), *steps, assistant("done"), user("and now?"))

    context, changes = await taken_apart(history, SmartTruncate(storage, max_tokens=4000))

    assert isinstance(changes[0].detail, Truncated)
    assert await restored(context, written([undo_of(changes[0])]), storage) == history


async def test_an_archive_in_another_storage_on_this_disk_is_found(tmp_path: Path) -> None:
    archive, storage = LocalStorage(tmp_path / "archive"), LocalStorage(tmp_path / "files")
    history = conversation(user("go"), *(step(f"t{i}", result=LONG) for i in range(5)), user("and now?"))
    context, steps = await taken_apart(history, Compact(ExtractiveSummarizer(), archive))

    assert await restored(context, list(map(undo_of, steps)), storage) == history


async def test_a_stage_without_an_archive_is_taken_back_from_memory(tmp_path: Path) -> None:
    history = conversation(user("go"), *(step(f"t{i}", result=LONG) for i in range(5)), user("and now?"))

    await check_way_back(history, LocalStorage(tmp_path), Compact(ExtractiveSummarizer(), require_archive=False))


DAMAGES: dict[str, Callable[[Path], object]] = {
    "is missing": lambda path: path.unlink(),
    "is no archive": lambda path: path.write_text("{"),
    "holds other messages": lambda path: path.write_text(path.read_text().replace("a long line", "another line")),
}


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_archive_is_an_error_that_names_the_message(damage: str, tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    history = conversation(user("go"), *(step(f"t{i}", result=LONG) for i in range(5)), user("and now?"))
    context, steps = await taken_apart(history, Compact(ExtractiveSummarizer(), storage))
    undos = list(map(undo_of, steps))
    DAMAGES[damage](Path(str(undos[0].archive)))

    with pytest.raises(StorageError, match=r"message [02] of the history"):
        await restored(context, undos, storage)


async def test_the_message_named_is_that_of_the_raw_history(tmp_path: Path) -> None:
    """Also where an older compaction has taken messages out in front of it."""
    storage = LocalStorage(tmp_path)
    old = conversation(user("go"), *(step(f"t{i}", result=LONG) for i in range(5)), user("and now?"))
    context, first = await taken_apart(old, Compact(ExtractiveSummarizer(), storage))
    history = [*old, *step("t9", result=LONG)]
    context, second = await taken_apart([*context, *step("t9", result=LONG)], DirectOffload(storage))
    Path(cast("Offloaded", second[0].detail).files[0]).unlink()

    with pytest.raises(StorageError, match=f"message {len(history) - 1} of the history"):
        await restored(context, [*map(undo_of, first), *map(undo_of, second)], storage)


async def test_the_way_back_takes_few_bytes_for_each_archived_message(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    history = conversation(user("go"), *(step(f"t{i}", result=LONG) for i in range(200)), user("and now?"))
    _, steps = await taken_apart(history, Compact(ExtractiveSummarizer(), storage))

    [undo] = written(list(map(undo_of, steps)))

    assert len(json.dumps(undo.items)) < 20 * len(history)


# Repairs ----------------------------------------------------------------------------------------------------------


async def test_a_repaired_history_comes_back_broken(tmp_path: Path) -> None:
    calls = conversation(user("go"), assistant(tool_use("lost")), user("hello?"))
    history = [*calls, user(tool_result("orphan")), user(".")]

    await check_way_back(history, LocalStorage(tmp_path))


# Any damage -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _played() -> AsyncIterator[tuple[Session, list[Message], list[Path]]]:
    """A session all of whose stages have worked, its history, and the files that hold what left the context."""
    results = [LONG if i % 3 == 0 else [text(f"line {i} " * 60)] if i % 3 == 1 else f"row {i} " * 60 for i in range(24)]
    history = conversation(user("go"), *(step(f"t{i}", result=results[i], say=f"step {i} " * 40) for i in range(24)))
    with tempfile.TemporaryDirectory() as root:
        storage = LocalStorage(root, clock=float)
        stages = (
            DirectOffload(storage, min_chars=2000),
            BatchOffload(storage),
            Compact(ExtractiveSummarizer(), storage, clock=float),
            SmartTruncate(storage),
        )
        pipeline = ContextPipeline(stages, budget=Budget(window=3000, trigger=1800))
        session = pipeline.session("s", journal=storage)
        for stop in range(1, len(history) + 1, 2):
            await session.run(history[:stop])
        files = sorted(path for path in Path(root).rglob("*") if path.suffix in (".md", ".json"))
        assert {".md", ".json"} == {path.suffix for path in files}
        yield session, history, files


DAMAGE: dict[str, Callable[[bytes, int, int], bytes | None]] = {
    "another byte": lambda held, place, byte: held[:place] + bytes([byte]) + held[place + 1 :],
    "cut off": lambda held, place, _: held[:place],
    "a line break": lambda held, place, _: held[:place] + b"\n" + held[place:],
    "removed": lambda _, __, ___: None,
}


async def test_whatever_happens_to_a_file_the_history_comes_back_as_it_was_or_not_at_all() -> None:
    refused = Counter[str]()
    async with _played() as (session, history, files):
        for number in range(settings().max_examples // 10):
            chance = random.Random(number)
            path, damage = chance.choice(files), chance.choice(list(DAMAGE))
            held = path.read_bytes()
            left = DAMAGE[damage](held, chance.randrange(len(held)), chance.randrange(256))
            path.unlink() if left is None else path.write_bytes(left)

            back, told = await restored_or_told(session)
            assert back == history or re.search(r"message \d+ of the history", told), number
            refused[damage] += bool(told)
            path.write_bytes(held)
        assert await session.restore_history() == history
    assert sum(refused.values()) > 3


async def restored_or_told(session: Session) -> tuple[list[Message] | None, str]:
    try:
        return await session.restore_history(), ""
    except StorageError as error:
        return None, str(error)


# After a cut ------------------------------------------------------------------------------------------------------


def one_by_one(context: list[Message], index: int, detail: Offloaded) -> tuple[list[Message], Undo]:
    """*context* with message *index* rewritten, and the way back."""
    shorter = user(f"short {context[index]['content']}")
    after = [shorter if i == index else message for i, message in enumerate(context)]
    return after, undo_of(Step(context, after, detail))


def replaced(context: list[Message], start: int, stop: int) -> tuple[list[Message], Undo]:
    """*context* with a summary in place of messages *start* … *stop*, and the way back."""
    after = [*context[:start], user("summary"), *context[stop:]]
    return after, undo_of(Step(context, after, None))


CHANGES = st.lists(st.tuples(st.booleans(), st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=5)


@given(CHANGES, st.integers(0, 99))
async def test_after_a_cut_the_rest_comes_back_and_nothing_else(
    changes: list[tuple[bool, int, int]], length: int
) -> None:
    history = chat(12)
    context, undos = list(history), list[Undo]()
    for replaces, one, other in changes:
        if replaces and len(context) > 1:
            start = one % (len(context) - 1)
            context, undo = replaced(context, start, start + 2 + other % (len(context) - start - 1))
        else:
            context, undo = one_by_one(context, one % len(context), Offloaded())
        undos.append(undo)
    length = length % (len(context) + 1)

    kept = shortened(undos, length)
    back = await restored(context[:length], kept, NO_STORAGE)

    assert length < len(context) or (kept, back) == (undos, history)
    # What could not be taken back is the outcome of a change that was cut in two, and of those before it.
    assert back == history[: len(back)] or len(kept) < len(undos)
    assert await restored([*context[:length], assistant("later")], kept, NO_STORAGE) == [*back, assistant("later")]


async def test_a_cut_behind_a_summary_still_gives_all_that_it_stands_for() -> None:
    context, undo = replaced(chat(6), 0, 6)
    after, offload = one_by_one([*context, *chat(4)], 2, Offloaded())

    kept = shortened([undo, offload], 3)

    assert await restored(after[:3], kept, NO_STORAGE) == [*chat(6), *chat(2)]


async def test_a_cut_in_front_of_a_change_leaves_nothing_of_it() -> None:
    context, undo = replaced(chat(6), 2, 4)
    after, offload = one_by_one(context, 1, Offloaded())

    kept = shortened([undo, offload], 2)

    assert await restored(after[:2], kept, NO_STORAGE) == chat(2)


async def test_messages_taken_out_at_the_end_come_back_unless_the_cut_lies_in_front_of_them() -> None:
    before = chat(6)
    undo = undo_of(Step(before, before[:4], None))

    assert await restored(before[:4], shortened([undo], 4), NO_STORAGE) == before
    assert await restored(before[:4], shortened([undo], 4, in_front=True), NO_STORAGE) == before[:4]


async def test_a_cut_into_the_outcome_of_a_change_makes_it_the_raw_history() -> None:
    before = chat(6)
    after = [user("summary"), assistant("noted"), *before[4:]]

    assert shortened([undo_of(Step(before, after, None))], 1) == []


@given(histories(3))
async def test_nothing_to_take_back_gives_the_context(history: list[Message]) -> None:
    assert await restored(history, [], NO_STORAGE) == history


@pytest.mark.parametrize("item", [["x", None], {"files": 7, "blocks": {}}, {"files": 0, "blocks": {"x": 1}}, None])
async def test_a_change_recorded_in_another_form_is_named(item: object, tmp_path: Path):
    undos = [Undo(0, 1, 1, (item,)), Undo(1, 1, 1, ())]

    with pytest.raises(StorageError, match="change 1 of 2 was recorded in another form"):
        await restored([user("hello")], undos, LocalStorage(tmp_path))
