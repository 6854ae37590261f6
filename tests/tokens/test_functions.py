"""The requirements' own questions: literal, raw, and exact at the threshold."""

from __future__ import annotations

from decimal import Decimal

import pytest
import stock
from histories import conversation, step, system, user

from ctxpipe.messages import compact_json
from ctxpipe.tokens import TokenCounter, count_tokens, should_compact


def worth(text: str) -> int:
    """A counter's function for texts that are numbers."""
    return int(text)


def test_a_count_is_the_sum_over_all_texts_with_nothing_added():
    history = conversation(
        system("be brief"), user("hello world"), step("t1", "bash", {"command": "ls"}, "a.py")
    )
    texts = ["be brief", "hello world", "t1", "bash", '{"command":"ls"}', "a.py"]

    assert count_tokens(history) == sum(stock.count("cl100k_base", text) for text in texts)


def test_system_prompt_and_tools_are_counted_if_given():
    tool = {"name": "bash", "description": "runs a command", "input_schema": {"type": "object"}}

    counted = count_tokens([user("hello")], "be brief", [tool])

    assert counted == sum(
        stock.count("cl100k_base", text) for text in ("hello", "be brief", compact_json(tool))
    )


def test_a_counter_or_a_function_may_be_given():
    assert count_tokens([user("hello")], counter=len) == 5
    assert count_tokens([user("你好世界")], counter=TokenCounter("o200k_base")) == stock.count(
        "o200k_base", "你好世界"
    )


def test_an_empty_list_never_compacts():
    assert not should_compact([], context_token_limit=0, counter=worth)
    assert not should_compact([], counter=worth, system="200000")


def test_a_limit_of_zero_is_literal():
    assert should_compact([user("0")], context_token_limit=0, counter=worth)


@pytest.mark.parametrize(
    ("tokens", "limit", "ratio", "expected"),
    [
        *((7, 100, ratio, True) for ratio in (0.07, Decimal("0.07"))),
        *((6, 100, ratio, False) for ratio in (0.07, Decimal("0.07"))),
        *((96, 103, 0.93, True), (95, 103, 0.93, False)),
        *((190, 100, 2, False), (200, 100, 2, True)),
    ],
)
def test_the_threshold_is_exactly_limit_times_ratio_whatever_the_ratio(
    tokens, limit, ratio, expected
):
    assert expected is should_compact(
        [user(str(tokens))],
        context_token_limit=limit,
        compact_threshold_ratio=ratio,
        counter=worth,
    )


def test_limit_and_ratio_come_from_the_environment_by_default(
    monkeypatch,
):
    monkeypatch.setenv("CONTEXT_TOKEN_LIMIT", "1000")
    monkeypatch.setenv("COMPACT_THRESHOLD_RATIO", "0.5")

    assert should_compact([user("500")], counter=worth)
    assert not should_compact([user("499")], counter=worth)
    assert not should_compact([user("500")], context_token_limit=1_001, counter=worth)


def test_system_prompt_and_tools_count_towards_the_threshold_if_given():
    assert not should_compact(
        [user("10")], context_token_limit=30, compact_threshold_ratio=1, counter=worth
    )
    assert should_compact(
        [user("10")], context_token_limit=30, compact_threshold_ratio=1, counter=worth, system="20"
    )


def test_a_short_history_is_judged_without_loading_an_encoding(
    monkeypatch,
):
    monkeypatch.delattr("ctxpipe.tokens.vocabulary.load")

    assert not should_compact([user("hello " * 1_000)], counter=TokenCounter())
