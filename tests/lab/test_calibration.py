"""A replay beside what the API billed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import conversation, step, user

from ctxpipe.lab.calibration import calibration
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.replay import replay
from ctxpipe.lab.transcripts import Transcript, parse_transcript
from ctxpipe.messages import compact_json


def talk(*usages: dict[str, object] | None) -> Transcript:
    steps = [step(f"t{i}", result=f"{i} " + "some words " * 600) for i in range(len(usages))]
    bare = parse_transcript(compact_json(conversation(user("Go."), *steps)))
    return replace(bare, usages={1 + 2 * i: usage for i, usage in enumerate(usages) if usage})


def billed(fresh: int, read: int, written: int) -> dict[str, object]:
    return {
        "input_tokens": fresh,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "service_tier": "standard",
    }


async def test_without_bills_there_is_nothing_to_compare() -> None:
    transcript = talk(None, None, {"output_tokens": 7})

    assert calibration(transcript, await replay(transcript, Policy("none"))) is None


async def test_the_calls_whose_bill_is_known_are_compared() -> None:
    transcript = talk(None, billed(4, 0, 1996), None, billed(10, 3990, 1000))
    found = await replay(transcript, Policy("none"))
    seen = calibration(transcript, found)

    assert seen is not None
    assert seen.calls == 2
    assert seen.billed_tokens == 7000
    assert seen.simulated_tokens == found.steps[1].prompt_tokens + found.steps[3].prompt_tokens
    assert seen.factor == pytest.approx(7000 / seen.simulated_tokens)
    assert seen.billed_hit_rate == pytest.approx(3990 / 7000)
    assert 0 < seen.simulated_hit_rate < 1


async def test_bills_as_the_simulation_has_them_agree_with_it() -> None:
    bare = talk(None, None, None, None)
    found = await replay(bare, Policy("none"))
    uses = [request.use for request in found.requests]
    same = talk(*(billed(round(use.fresh), round(use.read), round(use.written)) for use in uses))
    seen = calibration(same, found)

    assert seen is not None
    assert seen.factor == pytest.approx(1, rel=0.01)
    assert seen.billed_hit_rate == pytest.approx(seen.simulated_hit_rate, rel=0.01)


async def test_a_bill_that_no_prompt_can_have_is_none() -> None:
    transcript = talk(billed(10**400, 0, 0), None)

    assert calibration(transcript, await replay(transcript, Policy("none"))) is None
