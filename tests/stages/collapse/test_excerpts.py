"""The choice of lines that stay in sight when their text leaves the context."""

from __future__ import annotations

from typing import Any

import pytest
from histories import python_source
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.stages.collapse.excerpts import CHANCES, LeavingText, _least_tokens, choose_lines
from ctxpipe.stages.reading.atoms import atoms
from ctxpipe.tokens import TokenCounter

COUNTERS = {name: TokenCounter(name) for name in ("cl100k_base", "o200k_base")}
COUNTER = COUNTERS["cl100k_base"]
PATH = "the port is read in src/server.py only"
NAMES = "it calls read_port and check_port there"
SMALL_TALK = "and that is all"


def chosen(*passages: LeavingText, visible: frozenset[str] = frozenset(), **settings: Any) -> Any:
    settings = {"min_value": 3.0, "max_tokens": 10_000, **settings}
    return choose_lines(passages, visible, COUNTER.text, **settings)


def call(text: str, step: int = 1) -> LeavingText:
    return LeavingText(text, "call", step)


def test_lines_that_name_something_stay_and_small_talk_does_not():
    assert chosen(call(f"{PATH}\n{SMALL_TALK}\n{NAMES}")) == {1: [PATH, NAMES]}


@pytest.mark.parametrize(
    "line",
    [
        "端口在src/server.py里读取",
        "ポートはsrc/server.pyで読む",
        "port은 src/server.py에서",
        "见app.py",
    ],
)
def test_lines_that_name_something_stay_in_every_script(line: str):
    assert chosen(call(f"{line}\n好的\n{SMALL_TALK}")) == {1: [line]}


def test_each_line_stays_under_its_step_in_the_order_of_the_source():
    lines = [f"see src/part{number}.py" for number in range(6)]
    first = "\n".join(lines[:3])
    second = "\n".join(lines[3:])

    assert chosen(call(first, 4), call(second, 5)) == {4: lines[:3], 5: lines[3:]}


def test_what_other_messages_show_is_worth_nothing():
    assert chosen(call(PATH), visible=atoms(PATH)) == {}


def test_what_a_better_line_shows_already_is_worth_nothing():
    assert chosen(call("src/server.py"), call("so src/server.py it", 2)) == {1: ["src/server.py"]}


def test_a_line_that_occurs_twice_stays_where_it_came_first():
    assert chosen(call(PATH, 1), call(PATH, 2)) == {1: [PATH]}


def test_a_result_shows_less_that_is_used_again_than_a_call():
    text = "src/server.py and nothing else worth a word in this rather long line"

    assert chosen(call(text))
    assert not chosen(LeavingText(text, "result", 1))


def test_more_than_the_limit_never_stays():
    lines = [f"see src/part{number}.py" for number in range(50)]
    tokens = 1 + COUNTER.text(lines[0])

    [kept] = chosen(call("\n".join(lines)), max_tokens=10 * tokens).values()

    assert len(kept) <= 10
    assert chosen(call("\n".join(lines)), max_tokens=0) == {}


def test_a_higher_least_value_keeps_fewer_lines():
    text = python_source(30, 8)
    passage = LeavingText(f"{text}\nsrc/server.py\n", "call", 1)

    def kept(value: float) -> int:
        return sum(len(lines) for lines in chosen(passage, min_value=value).values())

    assert kept(1.0) >= kept(10.0) >= kept(50.0)
    assert kept(1.0) > kept(50.0)


@pytest.mark.parametrize("line", ["a/b.py x"[:7], f"src/server.py {'x' * 300}"])
def test_lines_too_short_or_too_long_do_not_stay(line):
    assert chosen(call(line)) == {}


@pytest.mark.parametrize("mark", ["\x1b[31m", "\x00", "\ud800", "\u202e"])
def test_a_line_with_control_characters_or_half_a_character_does_not_stay(mark):
    assert chosen(call(f"see src/server.py {mark}")) == {}


def test_a_line_with_tabs_stays_as_it_is():
    assert chosen(call("\tsee\tsrc/server.py ")) == {1: ["see\tsrc/server.py"]}


def test_only_the_beginning_of_an_endless_text_is_searched():
    assert chosen(call("x\n" * 30_000 + PATH)) == {}


def test_there_is_a_chance_for_every_class_of_atom_in_every_kind_of_passage():
    for chances in CHANCES.values():
        assert set(chances) == set("PFINLH")


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
@given(text=st.one_of(st.text(), st.text("aB3_ .-/é漢ि'\t", max_size=60)))
def test_no_line_is_taken_to_have_more_tokens_than_it_has(encoding, text: str):
    line = " ".join(text.split())

    assert _least_tokens(line) <= 1 + max(1, COUNTERS[encoding].text(line))


lines = st.lists(st.sampled_from([PATH, NAMES, SMALL_TALK, "x = 4711", "", "  see src/a.py"]))
passages = st.lists(
    st.builds(
        lambda lines, kind, step: LeavingText("\n".join(lines), kind, step),
        lines,
        st.sampled_from(["call", "text", "view", "result"]),
        st.integers(1, 3),
    ),
    max_size=6,
)


@given(passages, st.integers(0, 60), st.floats(0.1, 50))
def test_the_choice_is_made_of_lines_of_its_steps_within_its_limit(
    given_passages: list[LeavingText], max_tokens: int, min_value: float
):
    found = choose_lines(
        given_passages, set(), COUNTER.text, min_value=min_value, max_tokens=max_tokens
    )

    said = {(p.step, line.strip()) for p in given_passages for line in p.text.splitlines()}
    kept = [(step, line) for step, lines_of_step in found.items() for line in lines_of_step]
    assert set(kept) <= said
    assert len({line for _, line in kept}) == len(kept)
    assert sum(1 + COUNTER.text(line) for _, line in kept) <= max_tokens
