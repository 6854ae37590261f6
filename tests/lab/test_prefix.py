"""The system prompt and the tools that every request of a replay begins with."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import conversation, step, user

from ctxpipe import ContextPipeline
from ctxpipe.lab.policies import Policy
from ctxpipe.lab.prefix import PREFIX_TOKENS, read_prefix
from ctxpipe.lab.replay import ReplaySettings, replay
from ctxpipe.lab.transcripts import Transcript, parse_transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.messages import compact_json
from ctxpipe.stages.protocol import Turn
from ctxpipe.tokens import TokenCounter

COUNTER = TokenCounter()
NONE = Policy("none")


def recorded(**more: object) -> Transcript:
    history = conversation(user("Go."), *(step(f"t{number}") for number in range(3)))
    talk = parse_transcript(compact_json(history), "talk")
    return replace(talk, **more)  # type: ignore[arg-type]


def reporting(prefix_tokens: int, call: int = 0) -> Transcript:
    """A recording whose usage at this call reports so many tokens beyond the messages."""
    index = recorded().replies[call]
    messages = recorded().messages[:index]
    tokens = round(1.25 * COUNTER.total(messages)) + prefix_tokens
    return recorded(usages={index: {"input_tokens": 1, "cache_read_input_tokens": tokens - 1}})


def test_a_recording_that_shows_no_prefix_is_given_one():
    prefix = read_prefix(recorded(), COUNTER, PREFIX_TOKENS, 1.25)

    assert prefix.origin == "assumption"
    assert prefix.tokens == pytest.approx(PREFIX_TOKENS, rel=0.001)


@pytest.mark.parametrize("call", [0, 2])
@pytest.mark.parametrize("tokens", [0, 15_000, 42_000])
def test_the_first_usage_shows_the_size_of_the_prefix(tokens: int, call: int):
    prefix = read_prefix(reporting(tokens, call), COUNTER, PREFIX_TOKENS, 1.25)

    assert prefix.origin == "usage"
    assert prefix.tokens == pytest.approx(tokens, rel=0.001, abs=2)


@pytest.mark.parametrize("usage", [{"input_tokens": 5}, {"input_tokens": 900_000}])
def test_a_usage_that_cannot_be_that_of_these_messages_shows_nothing(usage: dict[str, int]):
    index = recorded().replies[2]

    assert read_prefix(recorded(usages={index: usage}), COUNTER, 700, 1.25).origin == "assumption"


def test_a_recorded_system_prompt_and_tools_are_the_prefix():
    transcript = recorded(system="Be brief. " * 50, tools=[{"name": "bash"}])
    prefix = read_prefix(transcript, COUNTER, PREFIX_TOKENS, 1.25)

    raw = COUNTER.total([], system=transcript.system, tools=transcript.tools)
    assert (prefix.origin, prefix.tokens) == ("recording", 1.25 * raw)
    assert prefix.system == transcript.system


def test_what_the_usage_reports_beyond_a_recorded_system_prompt_is_added():
    transcript = replace(reporting(20_000), system="Be brief. " * 50)
    prefix = read_prefix(transcript, COUNTER, PREFIX_TOKENS, 1.25)

    assert prefix.origin == "usage"
    assert prefix.tokens == pytest.approx(20_000, rel=0.001)
    assert isinstance(prefix.system, list)
    assert prefix.system[0] == {"type": "text", "text": transcript.system}


async def test_every_prompt_begins_with_the_prefix_and_it_is_written_once():
    with_prefix = await replay(recorded(), NONE, ReplaySettings(prefix_tokens=10_000))
    without = await replay(recorded(), NONE, ReplaySettings(prefix_tokens=0))

    sizes = [
        more.prompt_tokens - bare.prompt_tokens
        for more, bare in zip(with_prefix.steps, without.steps, strict=True)
    ]
    assert sizes == [pytest.approx(10_000, rel=0.001)] * len(sizes)
    first, *others = [request.use for request in with_prefix.requests]
    assert first.written > 10_000 * 0.99
    assert all(use.read > 10_000 * 0.99 for use in others)


async def test_the_budget_of_a_policy_counts_the_prefix():
    seen: list[int] = []

    async def look(turn: Turn) -> None:
        seen.append(await turn.raw_tokens())

    def make(_bench: Workbench) -> ContextPipeline:
        return ContextPipeline([look])

    await replay(recorded(), make, ReplaySettings(prefix_tokens=10_000))

    assert seen[0] > 8_000 * 0.99
