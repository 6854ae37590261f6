"""Prompt caching by the published rules, and the bill."""

from __future__ import annotations

from itertools import accumulate

import pytest
from histories import conversation, step, user
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.diagnostics.prompt_cache import CacheUse
from ctxpipe.lab.costs import PromptCache, ReplayRequest, bill
from ctxpipe.messages import Message
from ctxpipe.providers.prices import Cliff, Prices

TOKENS = 1000  # each message's


def sums(messages: list[Message], overhead: float = 0) -> list[float]:
    return list(accumulate([TOKENS] * len(messages), initial=overhead))


def work(calls: int, name: str = "t") -> list[Message]:
    return conversation(user("Go."), *(step(f"{name}{i}") for i in range(calls)))


def sent(
    cache: PromptCache, messages: list[Message], seconds: float = 0, overhead: float = 0
) -> CacheUse:
    use, *_ = cache.request(messages, sums(messages, overhead), seconds)
    return use


def test_the_first_request_is_written_to_the_cache():
    assert sent(PromptCache(), work(1)) == CacheUse(read=0, written=3000)


def test_earlier_messages_are_read_and_new_ones_written():
    cache = PromptCache()
    sent(cache, work(1))

    assert sent(cache, work(2)) == CacheUse(read=3000, written=2000)
    assert sent(cache, work(2)) == CacheUse(read=5000, written=0)


def test_an_equal_message_is_read_from_the_cache_like_the_same_object():
    cache = PromptCache()
    sent(cache, work(1))

    assert sent(cache, [dict(message) for message in work(2)]).read == 3000  # type: ignore[misc]


def test_system_prompt_and_tools_stay_cached_when_the_conversation_starts_again():
    cache = PromptCache()
    sent(cache, work(2), overhead=1500)

    assert sent(cache, [user("Other."), *work(2)[1:]], overhead=1500) == CacheUse(
        read=1500, written=5000
    )


def test_a_system_prompt_below_the_minimum_is_not_cached():
    cache = PromptCache()
    sent(cache, work(2), overhead=20)

    assert sent(cache, [user("Other."), *work(2)[1:]], overhead=20).read == 0


def test_a_rewrite_costs_the_messages_after_it():
    cache = PromptCache()
    history = work(3)
    for calls in range(4):
        sent(cache, history[: 1 + 2 * calls])
    changed = [*history[:4], user("changed"), *history[5:]]

    # The longest entry in front of message 4 ends at message 2.
    assert sent(cache, changed) == CacheUse(read=3000, written=4000)


def test_a_prefix_with_which_no_request_ended_is_not_cached():
    cache = PromptCache()
    history = work(3)
    sent(cache, history)

    assert sent(cache, [*history[:4], user("changed")]) == CacheUse(read=0, written=5000)


def test_a_mark_at_the_change_finds_the_entry_before_it():
    history, cache = work(20), PromptCache()
    for calls in range(21):
        sent(cache, history[: 1 + 2 * calls])

    assert sent(cache, [*history[:4], user("changed"), *history[5:]]).read == 3000


def test_with_all_marks_the_next_change_reads_up_to_the_end_of_the_last_one():
    cache, history = PromptCache(), work(9)
    for calls in range(9):
        sent(cache, history[: 1 + 2 * calls])
    once = [*history[:4], user("changed"), user("changed as well"), *history[6:]]
    twice = [*once[:8], user("changed, later"), *once[9:]]

    assert sent(cache, once).read == 3000
    # Message 6 ends what was changed; the entries of requests that ended between it and message 8
    # are gone.
    use, marked, _ = cache.request(twice, sums(twice))
    assert (use.read, marked.read) == (4000, 6000)


@pytest.mark.parametrize(("calls", "read"), [(9, 3000), (10, 0)])
def test_a_mark_looks_back_over_twenty_blocks(calls, read):
    cache = PromptCache()
    sent(cache, work(1))

    assert sent(cache, work(1 + calls)).read == read


def test_an_entry_lives_five_minutes_after_its_last_use():
    cache = PromptCache()
    sent(cache, work(1), 0)
    sent(cache, work(2), 299)

    assert sent(cache, work(3), 598).read == 5000
    assert sent(cache, work(4), 898) == CacheUse(read=0, written=9000)


def test_with_marks_for_an_hour_an_entry_outlives_a_pause():
    cache = PromptCache()
    sent(cache, work(1), 0)

    use, _, hour = cache.request(work(2), sums(work(2)), 301)

    assert (use.read, hour.read) == (0, 3000)


def test_a_prompt_below_the_minimum_is_neither_read_nor_written():
    cache = PromptCache()

    assert sent(cache, work(0)) == CacheUse(0, 0, fresh=1000)
    assert sent(cache, work(1)) == CacheUse(read=0, written=3000)


def test_a_request_with_other_settings_reads_the_system_prompt_only():
    cache = PromptCache()
    cache.request(work(1), sums(work(1), 1500), settings="without images")

    use, *_ = cache.request(work(2), sums(work(2), 1500), settings="with images")

    assert use == CacheUse(1500, 5000)


def test_a_request_that_is_not_sent_does_not_change_the_cache():
    cache = PromptCache()
    sent(cache, work(1))

    uses = [cache.request(work(2), sums(work(2)), is_sent=False) for _ in range(2)]

    assert uses == 2 * [3 * [CacheUse(3000, 2000)]]
    assert sent(cache, work(2)) == CacheUse(3000, 2000)


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3), st.integers(0, 400)), max_size=12))
def test_every_token_is_charged_once_and_only_the_common_prefix_is_read(
    turns: list[tuple[int, int, int]],
):
    cache, before, now = PromptCache(), work(0), 0.0
    for calls, version, pause in turns:
        now += pause
        after = work(calls, name=f"v{version}-")
        use = sent(cache, after, now)
        shared = next(
            (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), None
        )
        assert use.prompt == TOKENS * len(after)
        assert use.read <= TOKENS * (min(len(before), len(after)) if shared is None else shared)
        assert use.read == 0 or pause < 300
        before = after


# The bill -----------------------------------------------------------------------------------------


def test_a_bill_adds_up_read_written_fresh_and_output_tokens():
    requests = [
        ReplayRequest(0, "reply", CacheUse(0, 1000, 200), 10),
        ReplayRequest(1, "refetch", CacheUse(1000, 500), 20),
        ReplayRequest(1, "summary", CacheUse(1500, 0, 400), 100),
    ]
    found = bill(requests, Prices.relative())

    assert found.written == 1.25 * 1500
    assert found.read == pytest.approx(0.1 * 2500)
    assert found.fresh == 600
    assert found.output == 5 * 130
    assert found.total == pytest.approx(found.read + found.written + found.fresh + found.output)
    assert found.refetches == 1
    assert found.hit_rate == pytest.approx(2500 / 4600)


def test_above_a_price_step_the_whole_request_costs_more():
    prices = Prices(1, 1.25, 2, 0.1, 5, cliffs=(Cliff(1000, 2, 1.5),))
    below, above = (
        bill([ReplayRequest(0, "reply", CacheUse(0, size), 10)], prices) for size in (1000, 1001)
    )

    assert below.total == 1250 + 50
    assert above.total == 2 * 1.25 * 1001 + 1.5 * 50


def test_the_bills_of_two_parts_add_up_to_the_bill_of_the_whole():
    requests = [ReplayRequest(i, "reply", CacheUse(i, 2 * i, i), i) for i in range(5)]
    prices = Prices.relative()

    assert bill(requests[:2], prices) + bill(requests[2:], prices) == bill(requests, prices)
