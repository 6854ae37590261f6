"""A server that cuts prompts without an error, and reports only what it has read."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from histories import assistant, user
from recorded import in_turn

from ctxpipe import Budget, ContextPipeline, MemoryStorage, presets
from ctxpipe.messages import Message
from ctxpipe.summarizers import ExtractiveSummarizer
from ctxpipe.tokens import TokenCounter

COUNTER = TokenCounter()
WORDS = "the quick brown fox reads a file and says what it has found there "


def pipeline(**more: Any) -> ContextPipeline:
    stages = presets.coding_agent(MemoryStorage(), work_dir=None, summarize=ExtractiveSummarizer())
    return ContextPipeline(stages, **more)


def talk(turns: int, words: int = 300) -> list[Message]:
    """A history whose turns have about 4,000 tokens each."""
    history: list[Message] = []
    for number in range(turns):
        history.append(user(f"{number} {WORDS * words}"))
        if number < turns - 1:
            history.append(assistant(f"Answer {number}."))
    return history


def to_limit(limit: int) -> Callable[[int], int]:
    """A server that keeps as much of the end of a prompt as fits its window."""
    return lambda tokens: min(tokens, limit)


def to_half(limit: int) -> Callable[[int], int]:
    """A server like Ollama: half of its window is left of a prompt that does not fit."""
    return lambda tokens: tokens if tokens <= limit else limit // 2 + 2


async def drive(
    session: Any, server: Callable[[int], int], turns: int, factor: float = 1.0
) -> list[int]:
    """Run an agent's loop; return the tokens of each prompt that was sent."""
    sent = []
    for number in range(1, turns + 1):
        result = await session.run(talk(number))
        tokens = round(factor * COUNTER.total(result.messages))
        sent.append(tokens)
        session.observe({"input_tokens": server(tokens), "output_tokens": 50})
    return sent


@pytest.mark.parametrize(
    ("factor", "server"),
    in_turn([1.0, 0.8, 1.3], last=[to_limit(32_768), to_half(32_768)]),
)
async def test_a_silent_cut_is_reported_and_lowers_the_window(
    server: Callable[[int], int], factor: float, caplog: pytest.LogCaptureFixture
):
    session = pipeline().session("s")
    with caplog.at_level(logging.WARNING, "ctxpipe"):
        sent = await drive(session, server, 30, factor)

    [warning] = [
        record.message for record in caplog.records if "has cut the prompt" in record.message
    ]
    assert "without an error" in warning
    assert "num_ctx in Ollama" in warning
    assert "the quick brown fox" not in warning
    # Once the window is known, no further prompt is longer than the server's window.
    assert all(tokens <= 32_768 for tokens in sent[-10:])
    assert sum(tokens > 32_768 for tokens in sent) <= 16


async def test_a_first_prompt_that_is_cut_shows_the_window_at_once():
    session = pipeline().session("s")
    await session.run(talk(13))
    session.observe({"input_tokens": 16_386, "output_tokens": 50})
    result = await session.run([*talk(13), assistant("So."), user("Go on.")])

    [notice] = [notice for notice in result.notices if "has cut the prompt" in notice]
    assert "reports 16,386 tokens for a prompt of about 5" in notice
    assert COUNTER.total(result.messages) < 16_386


async def test_a_reply_that_accepts_more_raises_the_window_again(caplog: pytest.LogCaptureFixture):
    session = pipeline().session("s")
    await session.run(talk(13))
    session.observe({"input_tokens": 16_386, "output_tokens": 50})
    with caplog.at_level(logging.WARNING, "ctxpipe"):
        session.observe({"input_tokens": 60_000, "output_tokens": 50})
    result = await session.run([*talk(13), assistant("So."), user("Go on.")])

    assert "its window is larger" in caplog.text
    assert COUNTER.total(result.messages) > 40_000


async def test_a_pipeline_without_a_session_notices_it_too(caplog: pytest.LogCaptureFixture):
    shaping = pipeline()
    with caplog.at_level(logging.WARNING, "ctxpipe"):
        result = await shaping.run(talk(13), session_id="s")
        shaping.observe({"input_tokens": 16_386}, result.messages, session_id="s")
        after = await shaping.run(
            [*result.messages, assistant("So."), user("Go on.")], session_id="s"
        )

    assert "has cut the prompt without an error" in caplog.text
    assert COUNTER.total(after.messages) < 16_386


# Usages that are small for another reason ---------------------------------------------------------


def reports_new_tokens() -> Callable[[int], int]:
    """A server that reports only the tokens that it has not cached."""
    before = [0]

    def report(tokens: int) -> int:
        new = tokens - before[0]
        before[0] = tokens
        return new

    return report


@pytest.mark.parametrize(
    "server",
    [reports_new_tokens(), lambda tokens: round(0.55 * tokens), lambda tokens: tokens + 29_000],
    ids=["only new tokens", "another tokenizer", "a long system prompt"],
)
async def test_a_server_that_counts_in_another_way_has_cut_nothing(
    server: Callable[[int], int], caplog: pytest.LogCaptureFixture
):
    session = pipeline().session("s")
    with caplog.at_level(logging.WARNING, "ctxpipe"):
        sent = await drive(session, server, 15)

    assert "has cut" not in caplog.text
    assert sent[-1] > 50_000


async def test_cached_tokens_are_part_of_the_prompt():
    session = pipeline().session("s")
    for number in range(1, 15):
        result = await session.run(talk(number))
        tokens = COUNTER.total(result.messages)
        session.observe({"input_tokens": 3, "cache_read_input_tokens": tokens - 3})

    assert not result.notices
    assert tokens > 50_000


async def test_a_script_for_which_a_tokenizer_needs_few_tokens_was_not_cut(
    caplog: pytest.LogCaptureFixture,
):
    history = [user("快速的棕色狐狸读了一个文件并说出它在那里发现了什么。" * 2_000)]
    session = pipeline().session("s")
    with caplog.at_level(logging.WARNING, "ctxpipe"):
        result = await session.run(history)
        session.observe({"input_tokens": round(0.4 * COUNTER.total(result.messages))})

    assert "has cut" not in caplog.text


async def test_pictures_and_thinking_that_cost_less_than_counted_are_no_cut(
    caplog: pytest.LogCaptureFixture,
):
    thought = {"type": "thinking", "thinking": WORDS * 1_000, "signature": "s"}
    history = [
        user("Go."),
        {"role": "assistant", "content": [thought, {"type": "text", "text": "So."}]},
    ]
    session = pipeline().session("s")
    with caplog.at_level(logging.WARNING, "ctxpipe"):
        await session.run([*history, user(WORDS * 100)])
        session.observe({"input_tokens": 1_500})

    assert "has cut" not in caplog.text


async def test_each_model_has_a_window_of_its_own():
    session = pipeline().session("s")
    await session.run(talk(13), request={"model": "small"})
    session.observe({"input_tokens": 16_386})
    other = await session.run([*talk(13), assistant("So."), user("On.")], request={"model": "big"})

    assert COUNTER.total(other.messages) > 40_000


async def test_a_window_that_is_given_and_true_is_never_cut(caplog: pytest.LogCaptureFixture):
    session = pipeline(budget=Budget(window=32_768)).session("s")
    with caplog.at_level(logging.WARNING, "ctxpipe"):
        sent = await drive(session, to_half(32_768), 20)

    assert "has cut" not in caplog.text
    assert max(sent) <= 32_768
