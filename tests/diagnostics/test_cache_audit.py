"""The doctor itself, by bills as a provider would write them."""

from __future__ import annotations

from typing import Any

import pytest
from histories import assistant, user
from models import OTHER_MODEL

from ctxpipe.diagnostics.cache_audit import CacheAudit
from ctxpipe.diagnostics.misses import CacheUsage, Cause
from ctxpipe.diagnostics.prompts import SentRequest
from ctxpipe.messages import Message
from ctxpipe.tokens import TokenCounter

MARKED = {"model": OTHER_MODEL, "cache_control": {"type": "ephemeral"}}


def turn(number: int) -> list[Message]:
    return [user(f"{number} " + "word " * 3000), assistant("Yes.")]


def send(doctor: CacheAudit, messages: list[Message], seconds: float = 0.0, **more: Any) -> object:
    source = list(messages)
    fields = {"options": MARKED, **more}
    doctor.send(SentRequest(source, seconds, **fields), source)
    return source


def refuse_to_count(words: str) -> int:
    raise AssertionError("nothing is to be counted")


def test_requests_are_not_read_before_a_usage_is_reported():
    doctor = CacheAudit(TokenCounter(refuse_to_count))

    for number in range(20):
        send(doctor, turn(number), system="Be brief.")


def test_the_memory_is_bounded_in_long_conversations():
    doctor = CacheAudit(TokenCounter(len))
    for number in range(200):
        send(doctor, turn(number), float(number))
        if number % 3:
            doctor.observe(CacheUsage(0, 3000, 0))

    assert len(doctor._entries) <= 32
    assert len(doctor._waiting) <= 5


def test_a_first_request_cannot_miss():
    doctor = CacheAudit(TokenCounter())
    send(doctor, turn(0))

    assert doctor.observe(CacheUsage(0, 3000, 0)) == []


def test_reading_more_than_predicted_is_not_a_miss():
    """Another conversation with the same beginning has written it, or it lived longer."""
    doctor = CacheAudit(TokenCounter())
    send(doctor, turn(0))
    doctor.observe(CacheUsage(2000, 1000, 0))
    send(doctor, [*turn(0), *turn(1)], 1000.0)

    assert doctor.observe(CacheUsage(3000, 3000, 0)) == []


def test_a_miss_that_the_rules_do_not_predict_is_unexplained():
    doctor = CacheAudit(TokenCounter())
    send(doctor, turn(0))
    doctor.observe(CacheUsage(0, 3000, 0))
    send(doctor, [*turn(0), *turn(1)], 10.0)

    [miss] = doctor.observe(CacheUsage(0, 6000, 0))

    assert (miss.cause, miss.tokens, miss.written) == (Cause.UNEXPLAINED, 3000, 3000)


def test_explained_and_unexplained_tokens_are_two_misses():
    """After an edit what follows it is lost with reason, what precedes it is not."""
    first: Any = user(
        {"type": "text", "text": "word " * 3000, "cache_control": {"type": "ephemeral"}}
    )
    doctor = CacheAudit(TokenCounter())
    history = [first, assistant("Yes."), *turn(1)]
    send(doctor, history[:-1])
    doctor.observe(CacheUsage(0, 6000, 0))
    edited = [first, assistant("Yes."), user("9 " + "word " * 3000), assistant("Yes."), *turn(2)]
    edited.insert(4, history[2])  # so that something after the edit is as it was
    send(doctor, edited[:-1], 10.0)

    unexplained, explained = doctor.observe(CacheUsage(0, 12_000, 0))

    assert (unexplained.cause, explained.cause) == (Cause.UNEXPLAINED, Cause.MESSAGE)
    assert unexplained.tokens == pytest.approx(3000, rel=0.01)
    assert explained.tokens == pytest.approx(6000, rel=0.01)


def test_a_request_without_a_usage_is_compared_with_the_next():
    doctor = CacheAudit(TokenCounter())
    send(doctor, turn(0))
    doctor.observe(CacheUsage(0, 3000, 0))
    send(doctor, [*turn(0), *turn(1)], 10.0)
    doctor.observe(None)
    send(doctor, [*turn(0), *turn(1), *turn(2)], 20.0, system="Be long.")

    [miss] = doctor.observe(CacheUsage(0, 9000, 0))

    assert miss.cause is Cause.SYSTEM
    assert miss.tokens == pytest.approx(6000, rel=0.01)


def test_a_usage_that_belongs_to_no_request_is_ignored():
    doctor = CacheAudit(TokenCounter())

    assert doctor.observe(CacheUsage(0, 3000, 0)) == []


def test_a_usage_reported_twice_counts_once():
    doctor = CacheAudit(TokenCounter())
    source = send(doctor, turn(0))
    doctor.observe(CacheUsage(0, 3000, 0), source)
    source = send(doctor, [*turn(0), *turn(1)], 500.0)

    assert len(doctor.observe(CacheUsage(0, 6000, 0), source)) == 1
    assert doctor.observe(CacheUsage(0, 6000, 0), source) == []
