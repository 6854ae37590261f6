"""A chat with a model on this machine, until the server refuses or the last page is read.

    python -m examples.local_model                  # with ctxpipe
    python -m examples.local_model --plain          # without
    python -m examples.local_model --stream --window 2048

The server speaks OpenAI's API: Ollama, vLLM, LM Studio, llama.cpp. Its URL is in OPENAI_BASE_URL,
such as http://localhost:11434/v1. The window of the model is learned from the server's refusal.
Some servers answer a stream that is too long with an empty reply instead: give them ``--window``.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from ctxpipe import (
    Breaker,
    Budget,
    Compact,
    ContextPipeline,
    LocalStorage,
    Retry,
    SmartTruncate,
    Stage,
)
from ctxpipe.adapters.openai import ctxpipe_client
from ctxpipe.stages.reports import Compacted, StageReport
from ctxpipe.summarizers import PromptSummarizer

SYSTEM = "You help with a log. Answer in one short sentence."
FIRST_WORDS = "My order number is AX-4471."
REPLY_TOKENS = 40
ENTRIES = 25
SUMMARY_WORDS = 80
SUMMARY_TOKENS = 160


@dataclass
class Outcome:
    """Results of a chat.

    *prompt_tokens* has the tokens of each answered prompt, as the server counted them. *refused* is
    the number of requests that the server refused, *empty_replies* that of the replies without any
    text, *summary_seconds* the duration of each summary that the model has written. *error* is the
    refusal, or the end of the connection, that has ended the chat, or "".
    """

    prompt_tokens: list[int] = field(default_factory=list)
    refused: int = 0
    empty_replies: int = 0
    summary_seconds: list[float] = field(default_factory=list)
    error: str = ""

    def __str__(self) -> str:
        """Return one line with all of it."""
        seconds = ", ".join(f"{each:.0f}" for each in self.summary_seconds) or "none"
        tokens = "not reported"
        if any(self.prompt_tokens):
            tokens = ", ".join(str(each) for each in self.prompt_tokens)
        return (
            f"{len(self.prompt_tokens)} turns, {self.refused} refused, "
            f"{self.empty_replies} replies without text; tokens of the prompts: {tokens}; "
            f"seconds for summaries: {seconds}"
        )


class Transport(httpx2.AsyncHTTPTransport):
    """Transport that counts the refused requests in *outcome*."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__()
        self.outcome = outcome

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        self.outcome.refused += response.status_code == 400
        return response


def page(number: int, entries: int) -> str:
    """Return the words of the user in a turn: a page of a log."""
    lines = " ".join(f"entry {number}-{n} took {n * 7 % 13} ms;" for n in range(entries))
    return f"Page {number} of the log: {lines}"


async def chat(client: openai.AsyncOpenAI, turns: int, entries: int, *, stream: bool) -> Outcome:
    """Talk for *turns*, or until the server refuses or fails; print the tokens of each turn."""
    outcome = Outcome()
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": FIRST_WORDS},
    ]
    for turn in range(turns):
        ask = ask_streamed if stream else ask_plain
        started = time.monotonic()
        try:
            text, tokens = await ask(client, messages)
        except (openai.BadRequestError, openai.APIConnectionError) as error:
            outcome.error = str(error)
            break
        outcome.prompt_tokens.append(tokens)
        print(f"turn {turn + 1}: {tokens} tokens, {time.monotonic() - started:.0f} s", flush=True)
        outcome.empty_replies += not text
        messages.append({"role": "assistant", "content": text or "…"})
        messages.append({"role": "user", "content": page(turn + 1, entries)})
    return outcome


async def ask_plain(client: openai.AsyncOpenAI, messages: Iterable[Any]) -> tuple[str, int]:
    """Return the model's reply, and the tokens of the prompt."""
    reply = await client.chat.completions.create(
        model="local", messages=messages, max_tokens=REPLY_TOKENS, temperature=0
    )
    tokens = reply.usage.prompt_tokens if reply.usage else 0
    return reply.choices[0].message.content or "", tokens


async def ask_streamed(client: openai.AsyncOpenAI, messages: Iterable[Any]) -> tuple[str, int]:
    """Return the same from a stream; 0 tokens if the server reports none."""
    stream = await client.chat.completions.create(
        model="local",
        messages=messages,
        max_tokens=REPLY_TOKENS,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    text = ""
    tokens = 0
    async for chunk in stream:
        if chunk.usage:
            tokens = chunk.usage.prompt_tokens
        for choice in chunk.choices:
            text += choice.delta.content or ""
    return text, tokens


async def chat_with_ctxpipe(
    root: str,
    base_url: str | None,
    turns: int,
    entries: int,
    *,
    stream: bool,
    window: int | None = None,
) -> Outcome:
    """Hold the chat with ctxpipe, whose summaries the same model writes.

    *window* has the tokens of the model's window; None learns them from a refusal.
    """
    summary_seconds: list[float] = []

    def note(report: StageReport) -> None:
        if isinstance(report.detail, Compacted):
            summary_seconds.append(report.seconds)

    async def summarize(prompt: str) -> str:
        reply = await summary_client.chat.completions.create(
            model="local",
            messages=[{"role": "user", "content": prompt}],
            max_tokens=SUMMARY_TOKENS,  # a small model may not stop by itself
        )
        return reply.choices[0].message.content or ""

    summary_client = new_client(base_url, openai.DefaultAsyncHttpxClient())
    storage = LocalStorage(root)
    # A small machine needs minutes for what a service does in seconds.
    patience = Breaker(retry=Retry(attempt_seconds=600, total_seconds=1200))
    summarizer = PromptSummarizer(summarize, max_words=SUMMARY_WORDS)
    stages: list[Stage] = [
        Compact(summarizer, archive=storage, breaker=patience),
        SmartTruncate(archive=storage),
    ]
    budget = Budget(window=window) if window else None
    pipeline = ContextPipeline(stages, budget=budget, on_report=note)
    counted = Outcome()
    http_client = ctxpipe_client(
        pipeline, session_id="chat", journal=storage, transport=Transport(counted)
    )
    async with new_client(base_url, http_client) as client, summary_client:
        outcome = await chat(client, turns, entries, stream=stream)
    outcome.refused = counted.refused
    outcome.summary_seconds = summary_seconds
    return outcome


async def chat_plainly(base_url: str | None, turns: int, entries: int, *, stream: bool) -> Outcome:
    """Hold the chat without ctxpipe."""
    counted = Outcome()
    http_client = openai.DefaultAsyncHttpxClient(transport=Transport(counted))
    async with new_client(base_url, http_client) as client:
        outcome = await chat(client, turns, entries, stream=stream)
    outcome.refused = counted.refused
    return outcome


def new_client(base_url: str | None, http_client: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    """Return a client of the SDK that waits as long as a small machine needs."""
    return openai.AsyncOpenAI(
        base_url=base_url, api_key="none", max_retries=0, timeout=1200, http_client=http_client
    )


async def main(turns: int, entries: int, *, stream: bool, plain: bool, window: int | None) -> None:
    """Hold one chat, and print its outcome."""
    if plain:
        print(await chat_plainly(None, turns, entries, stream=stream))
        return
    with tempfile.TemporaryDirectory() as root:
        print(await chat_with_ctxpipe(root, None, turns, entries, stream=stream, window=window))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=14)
    parser.add_argument("--entries", type=int, default=ENTRIES, help="length of a page")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--plain", action="store_true", help="without ctxpipe")
    parser.add_argument("--window", type=int, help="tokens of the window; learned by default")
    arguments = parser.parse_args()
    asyncio.run(
        main(
            arguments.turns,
            arguments.entries,
            stream=arguments.stream,
            plain=arguments.plain,
            window=arguments.window,
        )
    )
