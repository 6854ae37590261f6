from __future__ import annotations

import copy
import hashlib
import json
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, cast

import anyio
import pytest
from histories import assistant, chat, conversation, histories, step, user
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxpipe import (
    Budget,
    Change,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    Result,
    Session,
    SettingsError,
    StorageError,
    check,
)
from ctxpipe.edits.projection import Match
from ctxpipe.journal import NAME, Journal, State
from ctxpipe.messages import Message
from ctxpipe.stage import Turn
from ctxpipe.summarizers import Summary

LONG = "a long line of output\n" * 200


class Counting:
    """A summariser that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, messages: Any, /) -> Summary:
        self.calls += 1
        return Summary(f"summary {self.calls} of {len(messages)} messages")


def pipeline(storage: LocalStorage, summarize: Counting | None = None) -> ContextPipeline:
    """Long results go to files, and from 1,200 tokens on there is a summary."""
    stages = DirectOffload(storage), Compact(summarize or Counting(), storage)
    return ContextPipeline(stages, budget=Budget(window=2000, trigger=1200), on_error="raise")


def loop(turns: int, words: int = 40) -> list[Message]:
    """A history that is compacted now and then, and has a long result every third turn."""
    steps = [step(f"t{i}", result=LONG if i % 3 == 0 else f"line {i} " * words, say=f"step {i}") for i in range(turns)]
    return conversation(user("go"), *steps)


async def played(session: Session, history: list[Message], start: int = 1) -> Result:
    """*session* after every turn of *history*."""
    result = None
    for stop in range(start, len(history) + 1, 2):
        result = await session.run(history[:stop])
    assert result is not None
    return result


def lines(root: Path) -> list[str]:
    return [line for line in (root / "s" / NAME).read_text().split("\n") if line]


# Going on ---------------------------------------------------------------------------------------------------------


async def test_a_new_process_goes_on_with_the_same_bytes_and_no_summary(tmp_path: Path) -> None:
    storage, history = LocalStorage(tmp_path), loop(30)
    before = await played(pipeline(storage).session("s", journal=storage), history)

    summarize = Counting()
    session = pipeline(storage, summarize).session("s", journal=storage)
    after = await session.run(history)

    assert json.dumps(after.messages) == json.dumps(before.messages)
    assert (after.notices, after.changed, summarize.calls) == ((), False, 0)


async def test_a_restart_before_every_turn_changes_nothing(tmp_path: Path) -> None:
    history = loop(30)
    storage, summarize = LocalStorage(tmp_path, clock=float), Counting()
    session = pipeline(storage, summarize).session("s", journal=storage)
    expected = [(await session.run(history[:stop])).messages for stop in range(1, len(history) + 1, 2)]

    # At the same place: the digest of an archive, and so its tokens, depend on where the one before it is.
    await anyio.to_thread.run_sync(shutil.rmtree, tmp_path / "s")
    storage, again = LocalStorage(tmp_path, clock=float), Counting()
    for stop in range(1, len(history) + 1, 2):
        result = await pipeline(storage, again).session("s", journal=storage).run(history[:stop])

        assert result.messages == expected[stop // 2]
        assert not result.notices
    assert again.calls == summarize.calls > 1


async def test_a_caller_who_adopted_the_context_goes_on_with_it(tmp_path: Path) -> None:
    storage, history = LocalStorage(tmp_path), loop(30)
    before = await played(pipeline(storage).session("s", journal=storage), history)

    session = pipeline(storage).session("s", journal=storage)
    after = await session.run([*before.messages, *step("new")])

    assert after.messages == [*before.messages, *step("new")]
    assert not after.notices
    assert await session.restore_history() == [*history, *step("new")]


async def test_a_caller_who_lost_the_last_turns_goes_on_from_the_state_of_then(tmp_path: Path) -> None:
    storage, history = LocalStorage(tmp_path), loop(30)
    session = pipeline(storage).session("s", journal=storage)
    contexts = {stop: (await session.run(history[:stop])).messages for stop in range(1, len(history) + 1, 2)}

    summarize = Counting()
    result = await pipeline(storage, summarize).session("s", journal=storage).run(history[:41])

    assert (result.messages, result.notices, summarize.calls) == (contexts[41], (), 0)


async def test_a_caller_whose_last_adoption_was_lost_goes_on_from_the_one_before(tmp_path: Path) -> None:
    storage, history, adopted = LocalStorage(tmp_path), loop(30), list[Message]()
    session = pipeline(storage).session("s", journal=storage)
    for start in range(-1, len(history) - 1, 2):
        given_history = [*adopted, *history[max(0, start) : start + 2]]
        adopted = (await session.run(given_history)).messages

    again = pipeline(storage).session("s", journal=storage)
    result = await again.run(given_history)

    assert result.messages == adopted
    assert await again.restore_history() == history


async def test_what_bills_have_taught_is_known_again(tmp_path: Path) -> None:
    storage, history = LocalStorage(tmp_path), chat(9, 60)
    session = pipeline(storage).session("s", journal=storage)
    result = await session.run(history)
    billed = 2 * session._runner.counter.total(result.messages)
    session.observe({"input_tokens": billed}, model="m")
    await session.run([*history, assistant("more")])

    again = pipeline(storage).session("s", journal=storage)
    await again.run([*history, assistant("more")])

    assert again._record.ledger.factor == session._record.ledger.factor == 2


async def test_bills_that_teach_nothing_new_write_nothing(tmp_path: Path) -> None:
    storage, history = LocalStorage(tmp_path), chat(9, 60)
    session = pipeline(storage).session("s", journal=storage)
    for stop in range(1, len(history)):
        result = await session.run(history[:stop])
        session.observe({"input_tokens": 2 * session._runner.counter.total(result.messages)}, model="m")

    assert len(lines(tmp_path)) == 1


async def test_thinking_that_lost_its_bond_is_known_again(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)

    async def shorten(turn: Turn) -> Change | None:
        first = turn.messages[0]
        if first["content"] != "go, and at some length":
            return None
        return Change([user("go"), *turn.messages[1:]])

    history = conversation(user("go, and at some length"), step("t1", think="hm"), step("t2", think="so"))
    before = await ContextPipeline([shorten]).session("s", journal=storage).run(history)
    after = await ContextPipeline([shorten]).session("s", journal=storage).run(history)

    assert after.messages == before.messages
    assert after.request_options == before.request_options != {}


async def test_a_session_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)

    await played(pipeline(storage).session("s", journal=storage), chat(9))

    assert not (tmp_path / "s").exists()


async def test_a_line_is_as_long_as_what_has_changed(tmp_path: Path) -> None:
    storage, history = LocalStorage(tmp_path), conversation(user("go"), *(step(f"t{i}") for i in range(200)))
    session = pipeline(storage).session("s", journal=storage)
    await session.run(history)

    for number in range(10):
        history = [*history, *step(f"long_{number}", result=LONG)]
        await session.run(history)

    assert max(map(len, lines(tmp_path)[-9:])) < 2000


async def test_messages_of_our_own_with_a_lone_surrogate_are_written(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    broken = [user("go"), assistant("half \ud83d"), user("on")]
    before = await ContextPipeline().session("s", journal=storage).run(broken)

    session = ContextPipeline().session("s", journal=storage)
    after = await session.run(broken)

    assert before.messages[1]["content"] == after.messages[1]["content"] == "half \ufffd"
    assert await session.restore_history() == broken


# Damage -----------------------------------------------------------------------------------------------------------


def without_last_bytes(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def with_a_flipped_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-200] ^= 1
    path.write_bytes(bytes(data))


def without_its_first_line(path: Path) -> None:
    path.write_text("\n".join(path.read_text().split("\n")[2:]))


def with_noise(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n\xff\xfe\x00 noise\n{}\n0123456789abcdef {}\n")


def with_a_line_of_another_version(path: Path) -> None:
    body = json.dumps({"version": 9})
    path.write_text(f"{path.read_text()}\n{hashlib.sha256(body.encode()).hexdigest()[:16]} {body}")


DAMAGES: list[Callable[[Path], None]] = [
    without_last_bytes,
    with_a_flipped_bit,
    with_noise,
    with_a_line_of_another_version,
]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_journal_never_gives_a_wrong_context(damage: Callable[[Path], None], tmp_path: Path) -> None:
    storage, history = LocalStorage(tmp_path), loop(30)
    await played(pipeline(storage).session("s", journal=storage), history)
    damage(tmp_path / "s" / NAME)

    session = pipeline(storage).session("s", journal=storage)
    result = await session.run(history)

    assert not check(result.messages)
    assert await session.restore_history() == history  # by hash: so the context stands for this history


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_line_is_told(
    damage: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage, history = LocalStorage(tmp_path), loop(30)
    await played(pipeline(storage).session("s", journal=storage), history)
    damage(tmp_path / "s" / NAME)

    with caplog.at_level(logging.WARNING, "ctxpipe"):
        result = await pipeline(storage).session("s", journal=storage).run(history)

    assert "damaged" in result.notices[0]
    assert "damaged" in caplog.text


async def test_what_rests_on_a_missing_line_is_not_used(tmp_path: Path) -> None:
    storage, history = LocalStorage(tmp_path), loop(30)
    await played(ContextPipeline([DirectOffload(storage)]).session("s", journal=storage), history)
    without_its_first_line(tmp_path / "s" / NAME)

    session = ContextPipeline().session("s", journal=storage)
    result = await session.run(history)

    assert result.messages == history == await session.restore_history()
    assert "another history" in result.notices[0]


async def test_a_change_that_a_missing_line_would_take_back_is_told(tmp_path: Path) -> None:
    storage, history, adopted = LocalStorage(tmp_path), loop(30), list[Message]()
    session = pipeline(storage).session("s", journal=storage)
    for start in range(-1, len(history) - 1, 2):  # each line of a caller who adopts holds the whole context
        adopted = (await session.run([*adopted, *history[max(0, start) : start + 2]])).messages
    without_its_first_line(tmp_path / "s" / NAME)

    again = pipeline(storage).session("s", journal=storage)

    assert (await again.run(adopted)).messages == adopted
    with pytest.raises(StorageError, match="not every change"):
        await again.restore_history()


async def test_behind_a_torn_line_the_session_goes_on_and_is_resumed(tmp_path: Path) -> None:
    storage, history = LocalStorage(tmp_path), loop(30)
    await played(pipeline(storage).session("s", journal=storage), history[:31])
    without_last_bytes(tmp_path / "s" / NAME)
    before = await played(pipeline(storage).session("s", journal=storage), history, 33)

    session = pipeline(storage).session("s", journal=storage)
    after = await session.run(history)

    assert after.messages == before.messages
    assert await session.restore_history() == history


@given(st.integers(0, 10_000), st.integers(0, 255))
async def test_whatever_byte_is_wrong_the_context_is_one_that_was_sent_or_a_fresh_one(place: int, byte: int) -> None:
    history, sent = await _recorded()
    with _copied() as root:
        path = Path(root) / "s" / NAME
        data = bytearray(path.read_bytes())
        data[place * len(data) // 10_001] = byte
        path.write_bytes(bytes(data))

        with suppress(StorageError):  # the number of its form became a newer one
            found = await Journal(LocalStorage(root), "s").find(history)

            assert found.state is None or json.dumps(found.state.context) in sent


async def test_cut_at_any_byte_the_journal_knows_the_last_whole_line_and_tells_of_the_torn_one() -> None:
    history, sent = await _recorded()
    every = 1 if settings().max_examples > 500 else 17
    with _copied() as root:
        path = Path(root) / "s" / NAME
        data = path.read_bytes()
        covered = len(history)
        for size in range(len(data), -1, -every):
            os.truncate(path, size)

            found = await Journal(LocalStorage(root), "s").find(history)

            whole = size in (0, len(data)) or data[size : size + 1] == b"\n" or data[size - 1 : size] == b"\n"
            assert found.damaged is not whole, size
            assert found.state is None or json.dumps(found.state.context) in sent
            assert (found.state is None) is (b"\n" not in data[1 : size + 1] and size < len(data))
            if found.state is not None:
                assert len(found.state.history) <= covered
                covered = len(found.state.history)
        assert covered == 3  # the turn of the first line


@settings(max_examples=settings().max_examples // 25)
@given(st.integers(0, 10_000))
async def test_cut_at_any_byte_the_session_goes_on_with_nothing_lost(place: int) -> None:
    history, _ = await _recorded()
    with _copied() as root:
        path, storage = Path(root) / "s" / NAME, LocalStorage(root)
        size = place * path.stat().st_size // 10_001
        torn = path.read_bytes()[max(0, size - 1) : size + 1].count(b"\n") == 0 and size > 0
        os.truncate(path, size)

        session = pipeline(storage).session("s", journal=storage)
        result = await session.run(history)

        assert not check(result.messages)
        assert ("the journal is damaged; what cannot be trusted was left out" in result.notices) is torn
        assert await session.restore_history() == history
        again = pipeline(storage).session("s", journal=storage)
        assert (await again.run(history)).messages == result.messages


_RECORDED: dict[str, Any] = {}


async def _recorded() -> tuple[list[Message], set[str]]:
    """A history, and every context that a journalled session has sent for it; made once."""
    if not _RECORDED:
        _RECORDED["folder"] = tempfile.TemporaryDirectory()
        storage, history = LocalStorage(_RECORDED["folder"].name), loop(12)
        session = pipeline(storage).session("s", journal=storage)
        sent = set()
        for stop in range(1, len(history) + 1, 2):
            sent.add(json.dumps((await session.run(history[:stop])).messages))
        _RECORDED["history"], _RECORDED["sent"] = history, sent
    return _RECORDED["history"], _RECORDED["sent"]


@contextmanager
def _copied() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(f"{_RECORDED['folder'].name}/s", f"{folder}/s")
        yield folder


async def test_a_journal_of_another_history_is_told_and_not_used(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    await played(pipeline(storage).session("s", journal=storage), loop(30))

    result = await pipeline(storage).session("s", journal=storage).run(chat(5))

    assert result.messages == chat(5)
    assert "another history" in result.notices[0]


async def test_a_missing_journal_is_a_fresh_start_without_a_word(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)

    result = await pipeline(storage).session("s", journal=storage).run(chat(5))

    assert (result.messages, result.notices) == (chat(5), ())


class Unreadable(LocalStorage):
    async def records(self, session_id: str, /) -> list[str]:  # noqa: ARG002
        raise StorageError(5, "the disk is gone")


async def test_a_journal_that_cannot_be_read_is_a_fresh_start_with_a_warning(tmp_path: Path) -> None:
    result = await ContextPipeline().session("s", journal=Unreadable(tmp_path)).run(chat(5))

    assert result.messages == chat(5)
    assert "Input/output error" in result.notices[0]
    assert "the disk is gone" not in result.notices[0]  # what a storage's error says may quote the conversation


class Unwritable(LocalStorage):
    """A storage whose records cannot grow while *broken* holds something."""

    broken: ClassVar[list[bool]] = []

    async def append(self, session_id: str, name: str, entry: Mapping[str, object], /) -> str:
        if self.broken:
            raise StorageError(28, "no space left on the device")
        return await super().append(session_id, name, entry)


async def test_lines_that_could_not_be_written_are_made_up_for(tmp_path: Path) -> None:
    storage, history = Unwritable(tmp_path), loop(30)
    session = pipeline(storage).session("s", journal=storage)
    await played(session, history[:21])
    storage.broken.append(True)
    result = await played(session, history[:41], 23)
    storage.broken.clear()
    before = await played(session, history, 43)

    again = pipeline(storage).session("s", journal=storage)
    after = await again.run(history)

    assert not result.notices or "no space" in result.notices[0]
    assert after.messages == before.messages
    assert await again.restore_history() == history


async def test_a_line_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    storage = Unwritable(tmp_path)
    storage.broken.append(True)
    try:
        result = await pipeline(storage).session("s", journal=storage).run(loop(2))
    finally:
        storage.broken.clear()

    assert "the journal cannot be written" in result.notices[0]


class Slow(LocalStorage):
    """A storage whose records take a while to grow, if *pause* holds seconds."""

    pause: ClassVar[list[float]] = []

    async def append(self, session_id: str, name: str, entry: Mapping[str, object], /) -> str:
        where = await super().append(session_id, name, entry)
        await anyio.sleep(sum(self.pause))
        return where


async def test_a_turn_cancelled_while_its_line_is_written_leads_to_no_wrong_context(tmp_path: Path) -> None:
    storage, history = Slow(tmp_path), loop(30)
    session = pipeline(storage).session("s", journal=storage)
    await played(session, history[:21])
    storage.pause.append(60.0)
    with anyio.move_on_after(0.2) as scope:
        await played(session, history, 23)
    storage.pause.clear()
    assert scope.cancelled_caught
    before = await played(session, history, 23)

    again = pipeline(storage).session("s", journal=storage)
    after = await again.run(history)

    assert after.messages == before.messages
    assert await again.restore_history() == history


# Cuts and branches ------------------------------------------------------------------------------------------------


async def test_a_branch_is_resumed_as_the_branch_and_the_old_way_as_the_old_way(tmp_path: Path) -> None:
    storage, history = LocalStorage(tmp_path), loop(20)
    session = pipeline(storage).session("s", journal=storage)
    old = (await played(session, history)).messages
    branch = [*history[:-4], *step("other", result=LONG + "!")]
    new = (await session.run(branch)).messages

    for expected, known in ((new, branch), (old, history)):
        again = pipeline(storage).session("s", journal=storage)
        result = await again.run(known)
        assert (result.messages, result.notices) == (expected, ())
        assert await again.restore_history() == known


async def test_after_any_cuts_a_new_process_knows_what_the_old_one_knew(tmp_path: Path) -> None:
    chance = random.Random(7)
    for number in range(25):
        storage = LocalStorage(tmp_path / str(number))
        session, history = pipeline(storage).session("s", journal=storage), loop(3)
        for turn in range(12):
            if chance.random() < 0.3:
                history = history[: chance.randrange(1, len(history) + 1, 2)]
            history = [*history, *step(f"{turn}", result=chance.choice([LONG, "short " * 80]) + str(chance.random()))]
            before = await session.run(history)
        again = pipeline(storage).session("s", journal=storage)

        after = await again.run(history)

        assert after.messages == before.messages
        assert await again.restore_history() == await session.restore_history() == history


# The parts --------------------------------------------------------------------------------------------------------


@given(histories(3))
async def test_a_state_that_was_written_is_found(history: list[Message]) -> None:
    with tempfile.TemporaryDirectory() as root:
        journal = Journal(LocalStorage(root), "s")
        state = State(
            history, [user("summary"), *history[2:]], Match(0, min(2, len(history)), 1), bills=[("m", 1, 2, 0, 0)]
        )
        await journal.write(state)

        found = (await Journal(LocalStorage(root), "s").find(copy.deepcopy(history))).state

    assert found is not None
    assert (found.history, found.context) == (state.history, state.context)
    assert (found.match, found.bills) == (state.match, (("m", 1, 2, 0, 0),))


async def test_a_record_that_only_ends_like_a_journal_is_none(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    await storage.append("s", f"other-{NAME}", {"form": 1})

    found = await Journal(storage, "s").find(chat(3))

    assert (found.state, found.damaged) == (None, False)


async def test_a_session_in_use_with_another_journal_is_refused(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    one = pipeline(storage)
    session = one.session("s")

    with pytest.raises(SettingsError, match="another journal"):
        one.session("s", journal=storage)

    assert one.session("s") is session
    assert cast("Any", session).journal is None
