"""The functions that shorten a history without a model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import pytest
from histories import (
    assistant,
    broken_histories,
    chat,
    conversation,
    histories,
    python_source,
    said,
    step,
    system,
    tool_result,
    user,
    view,
)
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import (
    SettingsError,
)
from ctxpipe.functions import count_tokens, smart_truncate, truncate_conversation
from ctxpipe.messages import (
    Message,
    blocks,
    check,
    split_system,
    tool_results,
)
from ctxpipe.stages.truncate.stage import SmartTruncate
from ctxpipe.tokens import TokenCounter

CHARS = TokenCounter(len)


FOLDED = "<system-reminder>\n## File Context: "


def long_session(steps: int = 12, chars: int = 400) -> list[Message]:
    """A task, many tool calls, an answer and the next request."""
    loop = [step(f"t{n}", result="x" * chars, say=f"step {n}") for n in range(steps)]
    return conversation(user("the task"), *loop, assistant("so"), user("next"))


def folded(messages: Sequence[Message]) -> list[int]:
    return [
        result.message
        for result in tool_results(messages)
        if str(result.content).startswith(FOLDED)
    ]


async def test_tool_calls_of_the_middle_go_even_below_the_limit_and_all_text_stays():
    history = long_session()

    result = await smart_truncate(history, counter=len)

    assert result.detail.filtered == 8
    assert result.detail.deleted == 0
    assert said(result.messages) == said(history)
    assert not result.detail.still_over
    assert check(result.messages) == []


async def test_nothing_to_do_is_the_very_same_list():
    for history in (chat(3), chat(10), conversation(user("go"), step("t1")), []):
        assert (await smart_truncate(history, counter=len)).messages is history


async def test_every_file_view_is_folded_also_outside_the_middle():
    source = python_source(20)
    history = conversation(user("go"), *[view(f"v{n}", f"f{n}.py", source) for n in range(6)])

    result = await smart_truncate(history)

    assert result.detail.folded == 6
    assert folded(result.messages) == [2, 4, 6, 8, 10, 12]
    content = next(tool_results(result.messages)).content
    assert isinstance(content, str)
    assert content.startswith(FOLDED + "f0.py")
    assert "f19" in content
    assert "argument" not in content


async def test_a_fold_that_is_not_smaller_and_a_text_without_names_stay():
    history = conversation(
        user("go"),
        view("v1", "a.py", "def f(): 1"),
        view("v2", "notes.txt", "word " * 99),
        user("x"),
    )

    result = await smart_truncate(history)

    assert result.detail.folded == 0
    assert result.messages is history


async def test_a_view_keeps_its_other_keys_when_it_is_folded():
    marked = {**tool_result("v1", python_source(20)), "cache_control": {"type": "ephemeral"}}
    history = conversation(user("go"), view("v1", "a.py", "")[0], user(marked), assistant("ok"))

    result = await smart_truncate(history)

    block = blocks(result.messages[2])[0]
    assert isinstance(block, dict)
    assert block["cache_control"] == {"type": "ephemeral"}
    assert block["content"].startswith(FOLDED)


async def test_messages_are_deleted_only_if_filtering_and_folding_did_not_suffice():
    history = long_session()
    without_calls = count_tokens((await smart_truncate(history, counter=len)).messages, counter=len)

    exactly = await smart_truncate(history, max_tokens=without_calls, counter=len)
    over = await smart_truncate(history, max_tokens=without_calls - 1, counter=len)

    assert exactly.detail.deleted == 0
    assert over.detail.deleted >= 1
    assert over.detail.tokens_after < without_calls


async def test_the_system_prompt_and_the_tools_count_where_given():
    history = chat(12, words=50)
    tokens = count_tokens(history, counter=len)

    alone = await smart_truncate(history, max_tokens=tokens, counter=len)
    with_system = await smart_truncate(
        history, max_tokens=tokens, system="s" * 100, tools=[{"n": 1}], counter=len
    )

    assert alone.messages is history
    assert with_system.detail.deleted
    assert with_system.detail.tokens_before == tokens + 100 + len('{"n":1}')


async def test_still_over_says_what_holds_the_rest():
    history = conversation(
        system("s" * 50), user("u" * 900), chat(6)[1:5], assistant("a" * 300), user("next")
    )

    result = await smart_truncate(history, max_tokens=100, system="p" * 70, counter=len)

    assert result.detail.still_over
    assert result.detail.tokens_after == count_tokens(result.messages, system="p" * 70, counter=len)
    assert result.detail.holds.startswith(
        "900 tokens in the first request, 300 tokens in what follows the middle"
    )
    assert "70 tokens in the system prompt and the tools" in result.detail.holds
    assert "50 tokens in the system messages" in result.detail.holds
    assert "4 tokens in the last turn" in result.detail.holds


def test_a_middle_that_ends_before_it_begins_is_refused():
    with pytest.raises(SettingsError, match="middle_start and middle_end are"):
        SmartTruncate(middle_start=0.9, middle_end=0.1)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": "all"}, "window is 'all'"),
        ({"marker": 3}, "marker is 3"),
        ({"folder": "src"}, "folder is 'src'"),
        ({"max_tokens": -1}, "max_tokens is -1"),
    ],
)
async def test_the_function_refuses_settings_that_make_no_sense(settings: dict[str, Any], words):
    with pytest.raises(SettingsError, match=words):
        await smart_truncate([], **settings)


async def test_each_distinct_text_is_encoded_once():
    source = [python_source(30, lines) for lines in range(2, 11)]
    steps = [
        (*step(f"t{n}", result=f"{n} " * 999), *view(f"v{n}", f"{n}.py", source[n]))
        for n in range(9)
    ]
    history = conversation(user("go"), *steps, assistant("so"), user("next"))
    counter = TokenCounter()
    await counter.counts(history)
    known = counter.encoded_chars

    result = await smart_truncate(history, counter=counter)

    folds = [
        str(found.content)
        for found in tool_results(result.messages)
        if str(found.content).startswith(FOLDED)
    ]
    assert len(folds) == 9
    # What is new are the folded texts, and for their joint budget the whole of them.
    assert counter.encoded_chars - known == sum(map(len, folds)) + len("\n".join(folds))
    again = counter.encoded_chars
    await smart_truncate(history, max_tokens=100, window="covering", counter=counter)
    assert counter.encoded_chars == again


@given(broken_histories(), st.integers(0, 3000))
async def test_no_broken_history_makes_the_function_fail(history: list[Message], max_tokens: int):
    before = copy.deepcopy(history)

    result = await smart_truncate(history, max_tokens=max_tokens, counter=CHARS, folder=Nothing())

    assert history == before
    assert result.detail.tokens_after <= result.detail.tokens_before


class Nothing:
    """Folds nothing: the properties below are about messages, and run without the parser."""

    async def fold(self, files: Sequence[tuple[str, str]], /) -> Sequence[str | None]:
        return [None] * len(files)


@pytest.mark.parametrize(
    ("messages", "fraction", "removed"),
    [
        (9, 0.5, 4),
        (9, 0.25, 2),
        (9, 0.2, 0),
        (10, 0.5, 4),
        (3, 1.0, 2),
        (5, 0, 0),
        (1, 0.5, 0),
        (21, 0.3, 6),
    ],
)
def test_an_even_number_of_the_oldest_messages_goes(messages, fraction, removed):
    history = chat(messages)

    assert truncate_conversation(history, fraction) == [
        history[0],
        *history[1 + removed :],
    ]


def test_head_and_first_request_stay():
    history = conversation(system("s"), chat(9))

    assert truncate_conversation(history, 0.5) == [*history[:2], *history[6:]]


def test_nothing_to_remove_is_the_very_same_list():
    history = chat(3)

    assert truncate_conversation(history, 0.5) is history
    assert truncate_conversation(history, Fraction(0)) is history
    assert truncate_conversation([], 0.5) == []


def test_a_cut_between_call_and_result_moves_back():
    history = conversation(user("go"), user("now"), step("t1"), step("t2"), step("t3"))

    assert truncate_conversation(history, 0.3) == [history[0], *history[2:]]


@given(histories(), st.fractions(0, 1))
def test_no_fraction_breaks_a_history(history: list[Message], fraction: Fraction):
    left = truncate_conversation(history, fraction)

    first = len(split_system(history)[0]) + 1
    assert left[:first] == history[:first]
    assert check(left) == []
    assert len(history) - len(left) <= (len(history) - first) * fraction
