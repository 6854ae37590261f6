"""Running totals of a conversation after any change of its list, and their calibration."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from anthropic.types import Usage
from anthropic.types.beta import BetaMessage
from histories import assistant, chat, conversation, step, text, tool_result, user
from hypothesis import given
from hypothesis import strategies as st
from recorded import NIGHTLY, sample

from ctxpipe.messages import Message, common_prefix
from ctxpipe.tokens import Budget, Ledger, TokenCounter

# Totals -------------------------------------------------------------------------------------------


async def check_totals(ledger: Ledger, messages: list[Message], unchanged_count: int | None = None):
    """The ledger's totals are those of a counter that knows nothing."""
    counts = map(TokenCounter(ledger.counter.text).message, messages)

    assert list(await ledger.prefix_sums(messages, unchanged_count=unchanged_count)) == [
        0,
        *itertools.accumulate(counts),
    ]


def new(words: str = "something new") -> Message:
    return user(words)


LISTS: dict[str, list[Message]] = {
    "the same": chat(9),
    "grown": [*chat(9), new(), new()],
    "shrunk": chat(4),
    "empty": [],
    "another": [new(), new("and more")],
    "replaced in the middle": [*chat(9)[:4], new(), *chat(9)[5:]],
    "replaced at the start": [new(), *chat(9)[1:]],
    "replaced at the end": [*chat(9)[:8], new()],
    "taken out of the middle": chat(9)[:3] + chat(9)[6:],
    "put into the middle": [*chat(9)[:3], new(), new(), new(), *chat(9)[3:]],
    "branched": [*chat(9)[:5], new()],
    "doubled": chat(9) + chat(9),
    "changed in two places and grown": [
        *chat(9)[:2],
        new(),
        *chat(9)[3:6],
        new(),
        *chat(9)[7:],
        new(),
    ],
    "a tail of it": chat(9)[4:],
}


@pytest.mark.parametrize("name", LISTS)
async def test_a_list_that_changed_between_two_turns_is_counted_right(name: str):
    ledger = Ledger()
    await check_totals(ledger, chat(9))

    await check_totals(ledger, LISTS[name])
    await check_totals(ledger, chat(9))


POOL = [*chat(5), new(), new("and more"), *step("t1", "bash", {"command": "ls"}, "a.py")]


@given(st.lists(st.lists(st.sampled_from(POOL), max_size=12), max_size=8))
async def test_any_sequence_of_lists_is_counted_right(lists: list[list[Message]]):
    ledger = Ledger(TokenCounter(len))
    for messages in lists:
        await check_totals(ledger, messages)


@given(
    st.lists(st.sampled_from(POOL), max_size=12),
    st.lists(st.sampled_from(POOL), max_size=12),
    st.integers(0, 12),
)
async def test_after_a_rewind_any_list_with_the_same_beginning_is_counted_right(
    first: list[Message], rest: list[Message], known: int
):
    ledger = Ledger(TokenCounter(len))
    await check_totals(ledger, first)

    ledger.rewind(known)

    await check_totals(ledger, first[:known] + rest, unchanged_count=ledger.unchanged_count)


async def test_a_turn_encodes_only_what_is_new():
    ledger, history = Ledger(TokenCounter()), chat(50)
    await ledger.total(history)
    encoded = ledger.counter.encoded_chars

    history.append(new("exactly 19 letters."))
    await ledger.total(history)

    assert ledger.counter.encoded_chars == encoded + 19


async def test_an_unchanged_list_returns_the_same_sums_object():
    ledger, history = Ledger(), chat(5)

    assert await ledger.prefix_sums(history) is await ledger.prefix_sums(list(history))


async def test_returned_sums_do_not_change_later():
    ledger, history = Ledger(), chat(5)
    sums = await ledger.prefix_sums(history)
    before = list(sums)

    history.append(new())
    await ledger.total(history)
    ledger.rewind(2)
    await ledger.total(history[:1])

    assert list(sums) == before


async def test_a_history_rebuilt_from_json_counts_as_unchanged():
    counted: list[str] = []

    def count(words: str) -> int:
        counted.append(words)
        return len(words)

    ledger = Ledger(TokenCounter(count, memo_bytes=0))
    total = await ledger.total(chat(20))
    counted.clear()

    assert await ledger.total(json.loads(json.dumps(chat(20)))) == total
    assert counted == []


async def test_results_appended_in_place_to_the_last_message_are_counted():
    ledger, history = Ledger(), conversation(user("go"), *step("t1", "bash", {}, "done"))
    await ledger.total(history)

    content: Any = history[-1]["content"]
    content.append(tool_result("t2", "something new"))

    await check_totals(ledger, history)


async def test_a_last_message_whose_text_was_replaced_in_place_is_counted_again():
    ledger, history = Ledger(), chat(3)
    await ledger.total(history)

    history[-1]["content"] = "something new"

    await check_totals(ledger, history)


async def test_a_last_message_edited_in_place_before_another_is_counted_again():
    ledger, history = Ledger(), conversation(user("go"), assistant(text("a"), text("b")))
    await ledger.total(history)

    content: Any = history[-1]["content"]
    content[0] = text("something new")
    history.append(new("and more"))

    await check_totals(ledger, history)


async def test_messages_that_the_caller_guarantees_are_not_compared():
    ledger, history = Ledger(), chat(5)
    total = await ledger.total(history)

    class Untouchable(dict[str, Any]):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("compared")

        __hash__ = None

    vouched: list[Any] = [*(Untouchable(message) for message in history), new()]

    assert await ledger.total(vouched, unchanged_count=5) == total + ledger.counter.message(new())


async def test_a_guarantee_for_more_messages_than_were_counted_counts_the_rest():
    await check_totals(Ledger(), chat(5), unchanged_count=5)


async def test_after_a_rewind_the_later_messages_are_compared_again():
    ledger, history = Ledger(), chat(9)
    await ledger.total(history)
    assert ledger.unchanged_count == 9

    ledger.rewind(4)
    assert ledger.unchanged_count == 4

    await check_totals(
        ledger, [*history[:4], new(), *history[5:]], unchanged_count=ledger.unchanged_count
    )
    assert ledger.unchanged_count == 9


async def test_messages_after_a_change_are_not_encoded_again():
    ledger, history = Ledger(TokenCounter()), chat(100)
    await ledger.total(history)
    encoded = ledger.counter.encoded_chars

    await check_totals(ledger, [*history[:3], new("changed"), *history[4:]])

    assert ledger.counter.encoded_chars == encoded + len("changed")


@given(
    st.lists(st.sampled_from(POOL), max_size=9),
    st.lists(st.sampled_from(POOL), min_size=1, max_size=9),
    st.data(),
)
async def test_savings_leave_the_ledger_correct(
    last: list[Message], before: list[Message], data: st.DataObject
):
    ledger = Ledger(TokenCounter())
    await ledger.total(last)
    ledger.rewind(common_prefix(last, before))
    first = data.draw(st.integers(0, len(before) - 1))
    after = [
        *before[:first],
        new("another"),
        *data.draw(st.sampled_from([before[first + 1 :], []])),
    ]

    savings = await ledger.savings(before, after, first)

    exact = ledger.counter.total(before) - ledger.counter.total(after)
    assert savings.is_estimate or savings.saved == exact
    assert savings.saved > 0 or savings.saved == exact
    await check_totals(
        ledger, data.draw(st.sampled_from([before, after])), unchanged_count=ledger.unchanged_count
    )


async def test_a_tuple_of_messages_is_accepted():
    ledger = Ledger()

    assert await ledger.total(tuple(chat(3))) == await ledger.total(chat(3))


# Estimates of a long history ----------------------------------------------------------------------


def long_messages(number: int, seed: int = 0) -> list[Message]:
    """Messages of about 4,100 tokens each, no two alike."""
    seeded = random.Random(seed)
    return [
        user(" ".join(f"{seeded.randrange(16**6):x} of total_{index}" for index in range(500)))
        for _ in range(number)
    ]


async def ledger_with_estimates(max_exact_tokens: int, counter: TokenCounter | None = None):
    ledger = Ledger(counter or TokenCounter())
    await ledger.counter.warm()
    ledger.allow_estimates(max_exact_tokens)
    return ledger


@pytest.mark.parametrize(
    ("share", "is_estimate"), [(0.5, True), (0.85, True), (0.95, False), (2, False)]
)
async def test_a_context_is_estimated_only_if_it_is_a_tenth_above_the_limit(share, is_estimate):
    history = long_messages(28)
    exact = TokenCounter().total(history)
    ledger = await ledger_with_estimates(int(exact * share))

    total = await ledger.total(history)

    assert ledger.is_estimate == is_estimate
    assert total == pytest.approx(exact, rel=0.05 if is_estimate else 0)


async def test_a_context_of_fewer_than_100_000_tokens_is_counted_exactly_whatever_the_limit():
    ledger = await ledger_with_estimates(1_000)

    await check_totals(ledger, long_messages(22))
    assert not ledger.is_estimate


async def test_an_estimate_does_not_depend_on_what_was_counted_before():
    history = long_messages(28)
    fresh = await ledger_with_estimates(55_000)
    trained = TokenCounter()
    trained.total(history[:4])
    other = await ledger_with_estimates(55_000, trained)
    await other.total(history[:2])  # exactly
    await other.total([*history[:27], new()])

    assert list(await other.prefix_sums(history)) == list(await fresh.prefix_sums(history))
    assert fresh.is_estimate


async def test_a_context_that_became_short_is_counted_exactly():
    history = long_messages(28)
    ledger = await ledger_with_estimates(55_000)
    await ledger.total(history)

    await check_totals(ledger, [*history[:2], new()])
    assert not ledger.is_estimate


async def test_a_ledger_that_counts_exactly_forgets_its_estimates():
    history = long_messages(28)
    ledger = await ledger_with_estimates(55_000)
    await ledger.total(history)

    ledger.count_exactly()

    assert not ledger.is_estimate
    await check_totals(ledger, history, unchanged_count=ledger.unchanged_count)


async def test_the_parts_of_an_estimated_context_add_up_to_its_total():
    history = long_messages(28)
    ledger = await ledger_with_estimates(55_000)

    total = await ledger.total(history)

    assert sum(ledger.part_counter.message(message) for message in history) == total
    ledger.count_exactly()
    assert ledger.part_counter is ledger.counter


async def test_a_small_saving_of_an_estimated_context_is_counted_exactly():
    history = long_messages(28)
    shorter = user(str(history[3]["content"])[:-400])
    ledger = await ledger_with_estimates(55_000)
    await ledger.total(history)

    savings = await ledger.savings(history, [*history[:3], shorter, *history[4:]], 3)

    count = TokenCounter().message
    assert not ledger.is_estimate
    assert savings.saved == count(history[3]) - count(shorter)


async def test_a_large_saving_of_an_estimated_context_is_an_estimate():
    history = long_messages(28)
    after = [*history[:1], *(new() for _ in range(27))]
    ledger = await ledger_with_estimates(55_000)
    await ledger.total(history)

    savings = await ledger.savings(history, after, 1)

    exact = TokenCounter().total(history) - TokenCounter().total(after)
    assert savings.is_estimate
    assert savings.saved == pytest.approx(exact, rel=0.05)
    await check_totals(ledger, after)


# Calibration --------------------------------------------------------------------------------------


def usage(billed: object, **more: Any) -> dict[str, Any]:
    return {"input_tokens": billed, **more}


def test_before_the_first_usage_the_estimate_is_the_raw_count():
    ledger = Ledger()

    assert ledger.factor == 1
    for tokens in (0, 1, 100, 101, 33_333):
        assert ledger.estimate(tokens) == ledger.measured_estimate(tokens) == tokens


def test_before_the_first_usage_compaction_begins_at_the_trigger():
    ledger, budget = Ledger(), Budget(window=200_000)

    assert not budget.reached(ledger.estimate(183_999))
    assert budget.reached(ledger.estimate(184_000))


@pytest.mark.parametrize(("raw", "billed"), [(2, 20), (1_000, 3_000), (3_000, 4_500)])
async def test_a_short_turn_does_not_set_the_price_of_a_long_text(raw, billed):
    ledger = Ledger(TokenCounter(len))
    ledger.observe(usage(billed), [user("x" * raw)])

    assert ledger.measured_estimate(raw + 120_000) < 184_000
    assert ledger.measured_estimate(2 * raw) == ledger.estimate(2 * raw)


async def test_a_long_turn_sets_the_price_of_a_long_text():
    ledger = Ledger(TokenCounter(len))
    ledger.observe(usage(30_000), [user("x" * 20_000)])

    assert ledger.measured_estimate(140_000) == ledger.estimate(140_000) == 210_000


async def test_the_token_count_of_a_refusal_is_accepted_even_if_far_above_the_raw_count():
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 5_000)]

    ledger.observe(usage(210_000), history)
    assert ledger.estimate(5_000) == 5_000

    ledger.observe(usage(210_000), history, is_certain=True)
    assert ledger.estimate(5_000) == 210_000


async def test_the_estimate_of_a_sent_context_is_its_reported_count():
    for billed in (1_000, 1_001, 1_234, 1_999):
        ledger, history = Ledger(TokenCounter(len)), [user("x" * 997)]

        ledger.observe(usage(billed), history)

        assert ledger.estimate(997) == billed


SDKS_USAGE = Usage(
    input_tokens=200,
    cache_creation_input_tokens=300,
    cache_read_input_tokens=700,
    output_tokens=9_999,
)


@pytest.mark.parametrize(
    ("chars", "bill", "overhead", "factor"),
    [
        (1_000, SDKS_USAGE, 0, 1.2),
        (1_000, usage(1_300, cache_creation_input_tokens=None), 0, 1.3),
        (600, usage(1_400), 400, 1.4),
        *((100, nothing, 0, 1) for nothing in (None, {}, usage(0), usage(-5), usage("many"))),
        (0, usage(100), 0, 1),
    ],
    ids=[
        *("what the cache read and wrote was billed too", "a field that is None counts nothing"),
        "the overhead belongs to the raw count",
        *("no usage", "an empty one", "nothing", "less than nothing", "no number"),
        "nothing was sent",
    ],
)
async def test_a_usage_sets_the_factor(chars, bill: object, overhead, factor):
    ledger = Ledger(TokenCounter(len))

    ledger.observe(bill, [user("x" * chars)] if chars else [], overhead=overhead)

    assert ledger.factor == factor


async def test_appended_text_is_estimated_with_the_measured_factor():
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 1_000)]
    ledger.observe(usage(1_300), history)

    history.append(assistant("y" * 500))

    assert ledger.estimate(await ledger.total(history)) == 1_300 + 650


async def test_the_factor_never_falls_below_one():
    """A proxy that reports the uncached part only must not make a full window look empty."""
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 10_000)]

    ledger.observe(usage(50), history)

    assert ledger.factor == 1
    assert ledger.estimate(10_000) == 10_000


async def test_the_factor_never_exceeds_the_highest_that_was_measured():
    """A large system prompt that was not counted is a fixed part, which does not grow."""
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 100)]

    ledger.observe(usage(20_000), history)

    assert ledger.factor == 2.25
    assert ledger.estimate(100) == 20_000
    assert ledger.estimate(200) == 20_225


async def test_a_fixed_part_of_the_usage_does_not_raise_the_price_of_appended_text():
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 1_000)]
    ledger.observe(usage(3_000 + 1_500), history)
    history.append(assistant("y" * 4_000))

    ledger.observe(usage(3_000 + 7_500), history)

    assert ledger.factor == 2.1
    assert ledger.estimate(25_000) == 3_000 + 37_500


def test_observing_a_usage_encodes_nothing_before_an_estimate_is_needed():
    ledger, history = Ledger(TokenCounter()), [user("a text that no stage has counted")]

    ledger.observe(usage(100), history)
    encoded = ledger.counter.encoded_chars

    assert encoded == 0
    assert ledger.factor > 1.5


async def test_a_compacted_context_is_estimated_by_its_share():
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 100_000)]
    ledger.observe(usage(150_000), history)

    assert ledger.estimate(20_000) == 30_000


async def test_growth_is_measured_again_after_a_compaction():
    ledger = Ledger(TokenCounter(len))
    ledger.observe(usage(150_000), [user("x" * 100_000)])
    ledger.observe(usage(12_000), [user("x" * 10_000)])

    ledger.observe(usage(14_400), [user("x" * 12_000)])

    assert ledger.estimate(13_000) == 14_400 + 1_200


async def test_after_a_compaction_text_has_the_price_that_was_measured_before_it():
    """A short context says little of its text: most of the usage is the fixed part."""
    ledger = Ledger(TokenCounter(len))
    for raw in (1_000, 3_000):
        ledger.observe(usage(5_000 + raw * 12 // 10), [user("x" * raw)])
        ledger.estimate(raw)

    ledger.observe(usage(5_600), [user("x" * 500)])

    assert ledger.estimate(1_500) == 5_600 + 1_200


async def test_the_last_usage_counts():
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 1_000)]
    ledger.observe(usage(1_200), history)

    ledger.observe(usage(1_600), history)

    assert ledger.factor == 1.6


async def test_each_model_has_its_own_factor():
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 1_000)]
    ledger.observe(usage(1_200), history, model="old")

    ledger.model = "new"
    assert ledger.factor == 1

    ledger.observe(usage(1_600), history, model="new")
    assert ledger.factor == 1.6

    ledger.model = "old"
    assert ledger.factor == 1.2


def test_a_loaded_ledger_estimates_for_the_model_that_replied_last():
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 1_000)]
    for model, tokens in (("a", 1_200), ("b", 1_600), ("a", 1_300)):
        ledger.observe(usage(tokens), history, model=model)
    loaded = Ledger(TokenCounter(len))

    loaded.load(ledger.samples)

    assert (loaded.model, loaded.estimate(1_000)) == ("a", 1_300)


async def test_a_usage_is_assigned_to_the_list_that_it_reports_on():
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 1_000)]
    await ledger.total([*history, assistant("y" * 5_000)])

    ledger.observe(usage(1_500), history)

    assert ledger.factor == 1.5


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**7),
    st.lists(st.integers(0, 10**6), min_size=2, max_size=2),
)
def test_an_estimate_grows_with_the_count_and_is_never_below_it(
    tokens: int, billed: int, counts: list[int]
):
    ledger = Ledger(TokenCounter(lambda _: tokens, memo_bytes=0))

    ledger.observe(usage(billed), [user("x")])

    less, more = sorted(counts)
    assert less <= ledger.estimate(less) <= ledger.estimate(more)


# Impossible bills ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "billed", [10**15, 190_000, 10**9, True, -5, float("nan"), float("inf"), "9999", None, [7]]
)
@pytest.mark.parametrize(
    "field", ["input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"]
)
async def test_an_impossible_usage_is_ignored(billed: object, field):
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 50_000)]

    ledger.observe({field: billed}, history)
    assert (ledger.factor, ledger.estimate(50_000)) == (1, 50_000)

    ledger.observe(usage(60_000), history)
    ledger.observe({field: billed}, history)
    assert (ledger.factor, ledger.estimate(50_000)) == (1.2, 60_000)


@given(
    st.integers(1, 10**6),
    st.lists(st.integers(0, 10**12), min_size=1, max_size=4),
    st.integers(0, 10**6),
)
def test_no_usage_raises_an_estimate_above_the_possible_maximum(
    tokens: int, bills: list[int], raw: int
):
    ledger = Ledger(TokenCounter(lambda _: tokens, memo_bytes=0))

    for billed in bills:
        ledger.observe(usage(billed), [user("x")])

    assert ledger.estimate(raw) <= 2.25 * raw + 32_000


def test_an_impossible_usage_from_a_journal_is_ignored():
    ledger = Ledger()

    ledger.load([("m", 1000, 10**15, 0, 0), ("n", 0, 5, 0, 0)])

    assert ledger.samples == []


def request(tokens: int, kind: str = "message", **more: Any) -> dict[str, Any]:
    return {"type": kind, "input_tokens": 10, "cache_read_input_tokens": tokens - 10, **more}


def cleared(*edits: object) -> dict[str, Any]:
    return {"usage": usage(40_000), "context_management": {"applied_edits": list(edits)}}


def sdks_reply() -> BetaMessage:
    edit = {
        "type": "clear_tool_uses_20250919",
        "cleared_tool_uses": 2,
        "cleared_input_tokens": 10_000,
    }
    first = {**request(50_000), "cache_creation_input_tokens": 0, "output_tokens": 1}
    body = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "usage": {"input_tokens": 100_000, "output_tokens": 1, "iterations": [first]},
        "context_management": {"applied_edits": [edit]},
    }
    return BetaMessage.model_validate(body)


def of_several(*iterations: dict[str, Any]) -> dict[str, Any]:
    return usage(100_000, iterations=list(iterations))


SUMMED_UP = request(900, "compaction")
NO_BILL = 50_000  # what was counted
BILLS: dict[str, tuple[object, int]] = {
    # The first request of several is the bill of what was sent.
    "server tools": (of_several(request(60_000), request(90_000), request(130_000)), 60_000),
    "summarized on the way": (of_several(request(60_000), SUMMED_UP, request(4_000)), 60_000),
    "summarized before": (of_several(SUMMED_UP, request(4_000)), NO_BILL),
    "only summarized": (of_several(SUMMED_UP), NO_BILL),
    "an advisor": (of_several(request(300, "advisor_message"), request(60_000)), 60_000),
    "another model": (
        of_several(request(55_000, model="a"), request(60_000, "fallback_message", model="b")),
        60_000,
    ),
    "of an unknown kind": (of_several(request(5, "future"), request(60_000)), 60_000),
    "the SDK's own": (sdks_reply(), 60_000),
    # A sum over server tools without its parts is no bill.
    "searches": (usage(100_000, server_tool_use={"web_search_requests": 3}), NO_BILL),
    **{
        kind: ({"usage": usage(100_000), "content": [{"type": kind, "id": "s"}]}, NO_BILL)
        for kind in ("server_tool_use", "mcp_tool_use")
    },
    **{
        f"searches: {none}": ({"usage": usage(60_000, server_tool_use=none)}, 60_000)
        for none in (None, {}, {"web_search_requests": 0})
    },
    # What the server has cleared was sent too.
    "cleared": (cleared({"cleared_input_tokens": 30_000}, {"cleared_input_tokens": "x"}), 70_000),
}


@pytest.mark.parametrize(("bill", "expected"), BILLS.values(), ids=BILLS)
async def test_the_sent_tokens_are_read_from_every_form_of_usage(bill: object, expected: int):
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 50_000)]

    ledger.observe(bill, history)

    assert ledger.estimate(50_000) == expected


# Summaries by the server --------------------------------------------------------------------------

SUMMARY_BLOCK = {"type": "compaction", "content": "what went before"}
FAILED_BLOCK = {"type": "compaction", "content": None}


def summaries(message: Message) -> list[int]:
    """Return the places of the server's summaries in *message*."""
    return [place for place, block in enumerate(message["content"]) if block == SUMMARY_BLOCK]


def counted(messages: list[Message]) -> list[int]:
    """Return the sums by definition: messages before the last summary have no tokens."""
    counter, last = (
        TokenCounter(len),
        max((i for i, m in enumerate(messages) if summaries(m)), default=-1),
    )
    billed: list[Any] = list(messages)
    if last >= 0:
        content: Any = billed[last]["content"]
        billed[last] = {**billed[last], "content": content[summaries(billed[last])[-1] :]}
    counts = (
        0 if place < last else counter.message(message) for place, message in enumerate(billed)
    )
    return [0, *itertools.accumulate(counts)]


SUMMARIZED: list[Message] = [
    assistant(SUMMARY_BLOCK, text("ok")),
    assistant(text("first"), SUMMARY_BLOCK, text("then")),
    assistant(SUMMARY_BLOCK, text("a"), SUMMARY_BLOCK, text("b")),
    assistant(FAILED_BLOCK, text("it failed")),
]


@given(
    st.lists(
        st.lists(st.sampled_from([*POOL[:4], *SUMMARIZED]), max_size=9), min_size=1, max_size=6
    )
)
async def test_messages_before_the_servers_last_summary_are_not_counted(
    lists: list[list[Message]],
):
    ledger = Ledger(TokenCounter(len))
    for messages in lists:
        sums = counted(messages)
        assert list(await ledger.prefix_sums(messages)) == sums
        assert await ledger.total(messages) == sums[-1]


@given(
    st.lists(st.sampled_from([*POOL[:4], *SUMMARIZED]), max_size=9),
    st.lists(st.sampled_from([*POOL[:4], *SUMMARIZED]), min_size=1, max_size=9),
)
async def test_a_usage_is_compared_with_the_messages_that_it_covers(
    seen: list[Message], billed: list[Message]
):
    ledger, fresh = Ledger(TokenCounter(len)), Ledger(TokenCounter(len))
    raw = counted(billed)[-1]
    await ledger.total(seen)

    for one in (ledger, fresh):
        one.observe(usage(max(1, raw + raw // 4)), billed)

    assert ledger.samples == fresh.samples
    assert [bill[1] for bill in ledger.samples] == ([raw] if raw else [])


async def test_a_context_that_the_server_has_summarized_is_estimated_from_the_summary_on():
    ledger, history = Ledger(TokenCounter(len)), [user("x" * 100_000)]
    ledger.observe(usage(110_000), history)
    history += [assistant(SUMMARY_BLOCK, text("ok")), user("go on")]
    # of which most is not counted, such as the API's own instructions
    ledger.observe(usage(1_000), history)
    history.append(assistant("y" * 60_000))

    estimate = ledger.estimate(await ledger.total(history))

    assert 60_000 <= estimate <= 1_000 + 1.1 * 60_000 + 1


async def test_a_turn_after_the_servers_summary_encodes_only_what_is_new():
    ledger = Ledger(TokenCounter())
    history = [*chat(50), assistant(SUMMARY_BLOCK, text("ok")), *chat(50)]
    await ledger.total(history)
    encoded = ledger.counter.encoded_chars

    history.append(new("exactly 19 letters."))
    await ledger.total(history)

    assert ledger.counter.encoded_chars == encoded + 19


Bill: TypeAlias = Callable[[int, int], int]


@functools.cache
def transcripts() -> dict[str, tuple[list[Message], list[int]]]:
    """The messages of each transcript, and the raw tokens of the first 0, 1, 2 … of them.

    By day a fourth of the transcripts.
    """
    counter, found = TokenCounter(), {}
    for file in sample(4):
        lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
        history: list[Message] = [line for line in lines if line.get("role")]
        found[file.name] = history, [0, *itertools.accumulate(map(counter.message, history))]
    return found


def check_estimates(bill: Bill, *, growth: int):
    """Once a context has grown enough, estimates miss the next bill by 3 % at most.

    Enough is by *growth* since its first usage.
    """
    checked = 0
    for name, (history, sums) in transcripts().items():
        ledger = Ledger(len)
        requests = [
            i
            for i, message in enumerate(history)
            if message["role"] == "assistant" and sums[i] >= 50
        ]
        for last, now in itertools.pairwise(requests):
            ledger.observe(usage(bill(sums[last], last)), [], overhead=sums[last])
            if sums[last] - sums[requests[0]] >= growth:
                estimate = ledger.estimate(sums[now])
                assert estimate == pytest.approx(bill(sums[now], now), rel=0.03), (name, now)
                checked += 1
    assert checked > (3_000 if NIGHTLY else 600)


@pytest.mark.shared
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("price", [1.2, 1.47, 2.1])
def test_after_the_first_usage_the_estimate_is_within_three_per_cent_on_every_transcript(price):
    check_estimates(lambda raw, _: round(price * raw), growth=0)


@pytest.mark.shared
@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("price", [1.2, 1.47, 2.1])
def test_a_fixed_part_of_the_usage_is_soon_separated_from_the_price_of_text(price):
    """6 tokens for the frame of each message, 500 for what the API itself says about tools."""
    check_estimates(lambda raw, n: round(price * raw) + 6 * n + 500, growth=1_000)
