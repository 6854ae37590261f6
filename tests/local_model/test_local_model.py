"""Chats with a real small model behind a real server: ``make test-local-model``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import openai
import pytest
from local_server import ROWS, Server

from ctxpipe import Breaker, Budget, Compact, ContextPipeline, LocalStorage, Retry
from ctxpipe.stages.reports import Compacted
from ctxpipe.summarizers import PromptSummarizer
from examples.local_model import chat_plainly, chat_with_ctxpipe, page

SIZES = {2_048: (7, 40), 8_192: (7, 160)}
"""Turns and entries of a page for each window."""


@pytest.mark.parametrize("window", SIZES)
async def test_a_chat_that_the_server_ends_goes_on_with_ctxpipe(
    window: int, server: Callable[[int], Server], tmp_path
):
    turns, entries = SIZES[window]
    running = server(window)
    await running.wait()

    plain = await chat_plainly(running.url, turns, entries, stream=False)
    root = str(tmp_path / "root")
    shaped = await chat_with_ctxpipe(root, running.url, turns, entries, stream=False)

    ROWS.append(f"window {window}, without ctxpipe: {plain}")
    ROWS.append(f"window {window}, with ctxpipe: {shaped}")
    assert f"maximum context length is {window}" in plain.error
    assert plain.refused == 1
    assert len(plain.prompt_tokens) < turns
    assert shaped.error == ""
    assert len(shaped.prompt_tokens) == turns
    assert max(shaped.prompt_tokens) <= window


async def test_a_streamed_chat_whose_window_is_given_gets_no_empty_reply(
    server: Callable[[int], Server], tmp_path
):
    window = 2_048
    turns, entries = SIZES[window]
    running = server(window)
    await running.wait()

    plain = await chat_plainly(running.url, turns, entries, stream=True)
    shaped = await chat_with_ctxpipe(
        str(tmp_path / "root"), running.url, turns, entries, stream=True, window=window
    )

    ROWS.append(f"window {window}, streamed, without ctxpipe: {plain}")
    ROWS.append(f"window {window}, streamed, with ctxpipe: {shaped}")
    assert plain.empty_replies > 0
    assert shaped.empty_replies == 0
    assert shaped.error == ""
    assert len(shaped.prompt_tokens) == turns


async def test_a_summary_that_timed_out_is_requested_again(
    server: Callable[[int], Server], tmp_path
):
    running = server(2_048)
    await running.wait()
    client = openai.AsyncOpenAI(base_url=running.url, api_key="none", max_retries=0)
    attempts = []

    async def ask(prompt: str) -> str:
        attempts.append(prompt)
        if len(attempts) == 1:
            running.pause()
        reply = await client.chat.completions.create(
            model="local", messages=[{"role": "user", "content": prompt}], max_tokens=60
        )
        return reply.choices[0].message.content or ""

    async def resume_and_wait(seconds: float) -> None:
        running.resume()
        await anyio.sleep(seconds)

    history: list[Any] = []
    for number in range(4):
        history.append({"role": "user", "content": page(number, 10)})
        history.append({"role": "assistant", "content": "It is fine."})
    retry = Retry(attempt_seconds=120, total_seconds=600, sleep=resume_and_wait)
    summarizer = PromptSummarizer(ask, max_words=60, window=2_048)
    stage = Compact(summarizer, archive=LocalStorage(tmp_path), breaker=Breaker(retry=retry))
    pipeline = ContextPipeline([stage], budget=Budget(window=2_048))
    result = await pipeline.run(history, session_id="job", force=True)
    await client.close()

    detail = result.reports[0].detail
    assert isinstance(detail, Compacted), result
    ROWS.append(f"a summary that timed out once: {result.reports[0].seconds:.0f} seconds")
    assert detail.attempts == len(attempts) == 2
    assert detail.messages_summarized == len(history)
