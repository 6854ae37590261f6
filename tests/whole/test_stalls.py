"""Nothing holds the event loop: what is long is looked at in a worker thread, and in pieces."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
from histories import assistant, conversation, tool_result, tool_use, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import (
    BatchOffload,
    Budget,
    ContextPipeline,
    LocalStorage,
    SmartTruncate,
    TrimReadBacks,
)
from ctxpipe import _values as values
from ctxpipe._threads import bulk, pieces
from ctxpipe.messages import (
    Message,
    activity,
    compact_json,
    is_bulky,
    is_encodable,
    without_surrogates,
)
from ctxpipe.stages.offload import selection as offload
from ctxpipe.stages.read_backs import selection as read_backs
from ctxpipe.stages.read_backs import stage as read_backs_stage
from ctxpipe.stages.read_backs.selection import _lines
from ctxpipe.stages.truncate import selection as truncate
from ctxpipe.stages.truncate import shortening
from ctxpipe.turn import judge, repair


class Threads:
    """Where the functions that are watched were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.monkeypatch = monkeypatch
        self.seen: dict[str, set[bool]] = {}

    def watch(self, owner: Any, name: str):
        work: Callable[..., Any] = getattr(owner, name)
        here, seen = threading.get_ident(), self.seen.setdefault(name, set())

        def watched(*arguments: Any, **options: Any) -> Any:
            seen.add(threading.get_ident() == here)
            return work(*arguments, **options)

        self.monkeypatch.setattr(owner, name, watched)

    @property
    def on_the_loop(self) -> set[str]:
        return {name for name, seen in self.seen.items() if True in seen}


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    return Threads(monkeypatch)


def steps(count: int, result: str = "ok", given: Mapping[str, Any] | None = None) -> list[Message]:
    messages: list[Message] = [user("go")]
    for number in range(count):
        call = tool_use(f"t{number}", "bash", {"command": f"ls {number}", **(given or {})})
        messages += [assistant(call), user(tool_result(f"t{number}", result))]
    return messages


LONG: dict[str, Callable[[], list[Message]]] = {
    "many messages": lambda: steps(300),
    "a long text": lambda: [user("x " * 200_000)],
    "a long result": lambda: steps(1, "line of a log\n" * 25_000),
    "a long input": lambda: steps(1, given={"text": "x" * 300_000}),
    "an input with many keys": lambda: steps(
        1, given={f"key {number}": number for number in range(5_000)}
    ),
    "a deep block": lambda: [user("go", {"type": "future", "more": [[["x"] * 900] * 3] * 3})],
    "many blocks": lambda: [
        user(*({"type": "text", "text": f"part {number}"} for number in range(3_000)))
    ],
    "a broken history": lambda: [
        message for place, message in enumerate(steps(300)) if place % 4 != 2
    ],
}


@pytest.mark.parametrize("name", LONG)
async def test_what_is_long_is_looked_at_in_a_thread(name: str, threads, tmp_path):
    history = LONG[name]()
    for module, work in ((judge, "ensure_messages"), (repair, "check"), (repair, "repair")):
        threads.watch(module, work)
    threads.watch(offload, "characters")
    storage = LocalStorage(tmp_path)

    await ContextPipeline([BatchOffload(storage)]).session("s").run(history)

    assert threads.on_the_loop == set()


async def test_a_short_turn_needs_no_thread(threads, tmp_path):
    threads.watch(repair, "check")

    await ContextPipeline([BatchOffload(LocalStorage(tmp_path))]).session("s").run(steps(20))

    assert threads.on_the_loop == {"check"}


@pytest.mark.parametrize("count", [30, 300])
async def test_truncation_is_done_in_a_thread(count, threads, tmp_path):
    threads.watch(truncate, "editable_region")
    for work in ("file_views", "filter_calls", "delete_center", "join_parts"):
        threads.watch(shortening, work)
    stage = SmartTruncate(archive=LocalStorage(tmp_path), max_tokens=2_000)

    result = await ContextPipeline([stage], budget=Budget(window=5_000)).run(
        steps(count, "x y " * 200), session_id="s"
    )

    assert result.changed
    assert threads.on_the_loop == set()


@pytest.mark.parametrize(
    ("show", "most"),
    [
        (lambda text: text, 10**9),
        (lambda text: text, 150_000),  # too long to be compared: offloaded like any other
        (lambda text: text[::-1], 10**9),
        (lambda text: text.replace("line", "\tl"), 10**9),
    ],
)
async def test_what_was_read_back_is_compared_with_its_file_in_a_thread(
    show: Callable[[str], str],
    most,
    threads,
    monkeypatch,
    tmp_path,
):
    threads.watch(read_backs_stage, "contains_excerpt")
    for module in (read_backs, read_backs_stage):
        monkeypatch.setattr(module, "MOST_COMPARED", most)
    storage = LocalStorage(tmp_path)
    text = "".join(f"line {number}\n" for number in range(20_000))
    [where] = await storage.write([("s/t0.md", text)])
    call = tool_use("t9", "bash", {"command": f"cat {where}"})
    history = conversation(user("go"), assistant(call), user(tool_result("t9", show(text))))

    await ContextPipeline([TrimReadBacks(storage)]).session("s").run(history)

    assert threads.seen["contains_excerpt"] == ({False} if most > len(text) else set())
    assert most > len(text) or (await storage.read("s/t9.md")).text == text


# In pieces ----------------------------------------------------------------------------------------

TEXTS = st.text(st.sampled_from('ab1- \n\t漢🙂"\\\ud800\udc00'), max_size=60)


@given(TEXTS, st.integers(1, 7))
def test_pieces_make_up_the_text_and_part_no_surrogates(text: str, size: int):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pieces, "_PIECE_CHARS", size)
        found = list(pieces.pieces(text))

        assert "".join(found) == text
        assert all(found)
        assert not any(
            "\ud800" <= one[-1] <= "\udbff" <= other[0] for one, other in pairwise(found)
        )
        assert is_encodable(text) == ("\ud800" not in text and "\udc00" not in text)
        repaired = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert without_surrogates(text) == (text if is_encodable(text) else repaired)


@given(TEXTS, st.integers(1, 9))
def test_words_are_found_in_pieces_as_in_the_whole(text: str, size: int):
    whole = f"{text} a1b2c3d4 {text} PROJ-123\n" * 3
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pieces, "_SEARCH_CHARS", size * 20)
        found = list(pieces.pieces_at_blanks(whole))

    assert "".join(found) == whole
    assert all(len(piece) <= size * 40 for piece in found)


def test_identifiers_are_those_of_the_whole_text(monkeypatch):
    history = conversation(user("see PROJ-123, a1b2c3d4 " * 50), assistant("PROJ-123 a1b2c3d4"))
    whole = activity.identifiers(history)
    monkeypatch.setattr(pieces, "_SEARCH_CHARS", 40)

    assert activity.identifiers(history) == whole == ["PROJ-123", "a1b2c3d4"]


@given(
    st.recursive(
        TEXTS | st.integers() | st.none(),
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    )
)
def test_json_made_in_steps_is_the_same(value):
    whole = compact_json(value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(values, "_MAX_STEP_CHARS", 0)
        patched.setattr(pieces, "_PIECE_CHARS", 3)

        assert compact_json(value) == whole


@given(st.lists(st.text("ab \t\n\x0b\u2028", max_size=9), max_size=9), st.integers(1, 5))
def test_lines_are_compared_in_steps_as_at_once(lines: list[str], step: int):
    text = "\n".join(lines)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(read_backs, "_STEP_CHARS", step)

        assert list(_lines(text)) == text.splitlines()


# What is bulky ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LONG)
def test_long_histories_are_bulky(name: str):
    assert is_bulky(LONG[name]())


def test_a_short_history_and_a_known_one_are_not_bulky():
    history = steps(300)

    assert not is_bulky(steps(20))
    assert not is_bulky(history, len(history) - 4)
    assert not is_bulky([])


def test_whether_something_is_bulky_is_asked_of_anything_and_costs_little(
    monkeypatch,
):
    endless: list[Any] = []
    endless.append(endless)
    visited: list[int] = []

    def noted(value: object, kind: Any) -> bool:
        visited.append(1)
        return isinstance(value, kind)

    monkeypatch.setattr(bulk, "isinstance", noted, raising=False)

    for odd in (
        [None],
        [object()],
        [endless],
        [{1: {2: 3}}],
        ["x" * 10**6] * 100,
        [[["x"] * 10**6] * 3],
    ):
        is_bulky(odd)

    assert len(visited) < 20_000
