"""The cache report and the calibration of a recorded conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from histories import conversation, step, user
from models import MODEL, OTHER_MODEL

from ctxpipe.diagnostics.misses import Cause
from ctxpipe.errors import TranscriptError
from ctxpipe.lab.cache import CacheReport, Calibration, cache_report, calibration, rows
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.replay import replay
from ctxpipe.lab.transcripts import Transcript, parse_transcript
from ctxpipe.messages import compact_json
from ctxpipe.providers.prices import Prices
from ctxpipe.tokens import TokenCounter

WORDS = "word " * 5000
TOKENS = 5_000


def recorded(bills: Sequence[dict[str, Any]], **header: Any) -> str:
    """A transcript of turns of 5,000 tokens, 10 seconds apart, with these bills."""
    lines: list[dict[str, Any]] = [{"type": "header", **header}] if header else []
    seconds = 1_700_000_000.0
    for number, bill in enumerate(bills):
        seconds += bill.pop("pause", 10)
        lines.append({"role": "user", "content": f"{number} {WORDS}", "timestamp": seconds})
        reply = {"role": "assistant", "content": "Yes.", "timestamp": seconds + 3}
        lines.append({**reply, "model": bill.pop("model", MODEL), "usage": bill})
    return "\n".join(map(json.dumps, lines))


def bill(read: int, written: int, uncached: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "input_tokens": uncached,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        **more,
    }


def report(text: str, **options: Any) -> CacheReport:
    return cache_report(parse_transcript(text), TokenCounter(), **options)


def test_turns_that_read_everything_before_give_no_miss():
    found = report(recorded([bill(turn * TOKENS, TOKENS) for turn in range(4)]))

    assert found.tallies == ()
    assert (found.requests, found.read, found.written) == (4, 6 * TOKENS, 4 * TOKENS)
    assert found.hit_rate == 0.6


def test_a_pause_is_recognized_by_the_times_of_the_messages():
    bills = [bill(0, TOKENS), bill(TOKENS, TOKENS), bill(0, 3 * TOKENS, pause=1000)]

    found = report(recorded(bills))

    [miss] = found.misses
    assert (miss.cause, miss.tokens) == (Cause.LIFETIME, 2 * TOKENS)
    [row] = rows(found.tallies)
    assert row[:4] == ("lifetime", "1", "10,000", "$0.0575")


def test_a_prefix_written_for_an_hour_lives_for_an_hour():
    hour: dict[str, Any] = {"cache_creation": {"ephemeral_1h_input_tokens": TOKENS}}
    bills = [bill(0, TOKENS, **hour), bill(TOKENS, TOKENS, pause=3000, **hour)]

    assert report(recorded([dict(one) for one in bills])).misses == ()
    bills[1] = bill(0, 2 * TOKENS, pause=4000)
    assert [miss.cause for miss in report(recorded(bills)).misses] == [Cause.LIFETIME]


def test_each_reply_has_its_own_model():
    bills = [bill(0, TOKENS), bill(0, 2 * TOKENS, model=OTHER_MODEL)]

    [miss] = report(recorded(bills)).misses

    assert miss.cause is Cause.MODEL
    assert miss.model == OTHER_MODEL


def test_a_miss_without_a_reason_in_the_file_is_unexplained():
    bills = [bill(0, TOKENS), bill(TOKENS, TOKENS), bill(0, 3 * TOKENS)]

    [miss] = report(recorded(bills)).misses

    assert (miss.cause, miss.tokens) == (Cause.UNEXPLAINED, 2 * TOKENS)


def test_requests_without_cached_tokens_have_no_mark():
    found = report(recorded([bill(0, 0, turn * TOKENS) for turn in range(1, 4)]))

    assert [one.cause for one in found.tallies] == [Cause.NO_MARK]
    assert found.tallies[0].tokens == 3 * TOKENS


def test_a_context_that_the_client_shortened_is_not_analyzed():
    bills = [bill(0, TOKENS), bill(TOKENS, TOKENS), bill(1000, 2000), bill(3000, TOKENS)]

    found = report(recorded(bills))

    assert found.misses == ()
    assert found.shortened == 1


def test_prices_of_the_caller_replace_those_of_the_model():
    bills = [bill(0, TOKENS), bill(0, 2 * TOKENS, model=OTHER_MODEL)]

    found = report(recorded(bills), prices=Prices.relative())

    assert found.tallies[0].cost == pytest.approx(TOKENS * 1.15, rel=0.01)


def test_without_listed_prices_the_cost_is_none():
    bills = [bill(0, TOKENS, model="mine"), bill(0, 2 * TOKENS, model="mine-2")]

    found = report(recorded(bills))

    assert rows(found.tallies)[0][3] == ""


@pytest.mark.parametrize("usage", [{}, {"input_tokens": 5}, {"prompt_tokens": 3}])
def test_a_file_without_cache_usage_is_reported(usage: dict[str, Any]):
    with pytest.raises(TranscriptError, match="has no usage that reports the prompt cache"):
        report(recorded([dict(usage), dict(usage)]))


# Comparison with a replay -------------------------------------------------------------------------


def talk(*usages: dict[str, object] | None) -> Transcript:
    steps = [step(f"t{i}", result=f"{i} " + "some words " * 600) for i in range(len(usages))]
    bare = parse_transcript(compact_json(conversation(user("Go."), *steps)))
    return replace(bare, usages={1 + 2 * i: usage for i, usage in enumerate(usages) if usage})


async def test_without_a_usage_there_is_no_calibration():
    transcript = talk(None, None, {"output_tokens": 7})

    assert calibration(transcript, await replay(transcript, Policy("none"))) is None


async def test_calls_with_a_usage_are_compared():
    transcript = talk(None, bill(0, 1996, 4), None, bill(3990, 1000, 10))
    found = await replay(transcript, Policy("none"))
    seen = calibration(transcript, found)

    assert seen is not None
    assert seen.calls == 2
    assert seen.billed_tokens == 7000
    assert seen.simulated_tokens == found.steps[1].prompt_tokens + found.steps[3].prompt_tokens
    assert seen.billed_read == 3990
    assert 0 < seen.simulated_read < seen.simulated_tokens


async def test_usages_equal_to_the_simulation_agree_with_it():
    bare = talk(None, None, None, None)
    found = await replay(bare, Policy("none"))
    uses = [request.use for request in found.requests]
    same = talk(*(bill(round(use.read), round(use.written), round(use.fresh)) for use in uses))
    seen = calibration(same, found)

    assert seen is not None
    assert seen.billed_tokens == pytest.approx(seen.simulated_tokens, rel=0.01)
    assert seen.billed_read == pytest.approx(seen.simulated_read, rel=0.01)


async def test_an_impossible_usage_gives_none():
    transcript = talk(bill(0, 0, 10**400), None)

    assert calibration(transcript, await replay(transcript, Policy("none"))) is None


def test_a_calibration_is_printed_as_a_sentence():
    found = Calibration(
        1, billed_tokens=1300, simulated_tokens=1000, billed_read=1196, simulated_read=950
    )

    assert str(found) == (
        "The usage of 1 call reports 1.300 times the prompt tokens that are simulated for the "
        "unchanged history; read from the cache were 92.0%, simulated 95.0%."
    )
