"""The scripted conversations: valid, always the same, and each of their orders is in them."""

from __future__ import annotations

import pytest
from recorded import NIGHTLY

from benchmarks import scripted_orders
from benchmarks.bench_orders import compacted, surveys
from benchmarks.scripted_orders import conversation, write
from ctxpipe.lab.orders import ORDER_KINDS, orders_by_transcript, read_orders
from ctxpipe.lab.transcripts import read_transcript
from ctxpipe.messages import check
from ctxpipe.testing.whereabouts import WordIndex, needle_of


@pytest.mark.parametrize("number", range(scripted_orders.CONVERSATIONS))
def test_each_order_is_in_the_conversation_before_its_first_call(number: int):
    script = conversation(number, calls=60)
    words = WordIndex()

    assert not list(check(script.messages))
    for order in script.orders:
        assert order.from_call <= order.until_call < 60
        replies = [i for i, m in enumerate(script.messages) if m["role"] == "assistant"]
        ends = [*replies, len(script.messages)]
        before = script.messages[: ends[order.from_call]]
        for line in order.lines:
            assert words.is_in_any(needle_of(line), before), (order.kind, line)


def test_a_conversation_follows_from_its_number():
    assert conversation(3, calls=30).messages == conversation(3, calls=30).messages
    assert conversation(3, calls=30).messages != conversation(4, calls=30).messages


def test_there_are_twenty_looks_and_more_for_each_kind_that_is_scripted():
    looks: dict[str, int] = {}
    for number in range(scripted_orders.CONVERSATIONS):
        for order in conversation(number, scripted_orders.CALLS).orders:
            looks[order.kind] = looks.get(order.kind, 0) + len(order.looks)

    assert set(looks) == set(ORDER_KINDS) - {"other constraint", "instruction file"}
    assert min(looks.values()) >= 20, looks


def test_what_is_written_can_be_surveyed_and_nothing_is_lost_without_management(tmp_path):
    write(tmp_path, conversations=1, calls=40)
    [path] = (tmp_path / "recordings").iterdir()
    orders = orders_by_transcript(read_orders(tmp_path / "orders.ndjson"))

    by_name = {survey.name: survey for survey in surveys([str(path)], orders)}

    assert read_transcript(path).calls == 40
    assert {row.context_share for row in by_name["none"].at_calls.values()} == {1.0}
    assert by_name["lean"].figures.ratio < 1


@pytest.mark.skipif(not NIGHTLY, reason="it replays a conversation often, in the nightly profile")
def test_a_compaction_is_measured_by_the_texts_that_apply_then(tmp_path):
    write(tmp_path, conversations=1, calls=40)
    orders = orders_by_transcript(read_orders(tmp_path / "orders.ndjson"))

    done = compacted(list((tmp_path / "recordings").iterdir()), orders, peers=[])

    looks, left = done["coding"]
    assert {look.order.kind for look in looks} >= {"skill text", "plan document", "prohibition"}
    assert left[-1] < 0.5
    assert all(look.in_context + look.in_file > 0.99 for look in looks)
