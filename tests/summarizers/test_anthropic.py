"""A Claude model writes the summary: the real SDK, against the scripted Messages API."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import pytest
from histories import assistant, chat, conversation, step, text, user
from histories import thinking as thought
from in_memory import messages_api

from ctxpipe.errors import SettingsError, SummaryFailed
from ctxpipe.messages import Message
from ctxpipe.summarizers import (
    AnthropicSummarizer,
    ExtractiveSummarizer,
    Retry,
    summarize_with_retry,
)
from ctxpipe.summarizers.prompt import MOST_RECENT, instructions
from ctxpipe.testing import (
    Cut,
    MessagesServer,
    Model,
    RequestBody,
    Script,
    answer_with,
    overloaded,
    prompt_too_long,
    rate_limited,
    refusal,
    server_error,
    thinking,
    tool_use,
)

HISTORY = conversation(
    user("Fix it."), step("toolu_1", "bash", {"command": "make"}, "ok"), assistant("Done.")
)
TOOLS: Any = [
    {"name": "bash", "description": "Run it.", "input_schema": {"type": "object", "properties": {}}}
]


@asynccontextmanager
async def serving(
    script: Script, model: Model | None = None, **client: Any
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    server = MessagesServer(script, counter=lambda text: len(text) // 4, model=model or Model())
    async with messages_api(server, **{"max_retries": 2, **client}) as talking:
        yield talking


async def no_sleep(_seconds: float):
    """Time passes only in the script."""


def prompt_of(body: RequestBody) -> str:
    return str(body["messages"][-1]["content"])


# Transcript ---------------------------------------------------------------------------------------


async def test_a_cheap_separate_model_reads_the_transcript():
    async with serving([answer_with(" A summary. ")]) as (server, client):
        summary = await AnthropicSummarizer(client)(HISTORY)

    body = server.requests[0].body
    assert body["model"] == "claude-haiku-4-5-20251001"
    assert [message["role"] for message in body["messages"]] == ["user"]
    assert "system" not in body
    assert "tools" not in body
    assert "<tool_use name" in prompt_of(body)
    assert MOST_RECENT in prompt_of(body)
    assert "1200 words" in prompt_of(body)
    assert (summary.text, summary.writer) == ("A summary.", "AnthropicSummarizer")
    assert summary.input_tokens > 0
    assert summary.output_tokens > 0
    assert summary.cached_tokens == 0


async def test_model_words_and_focus_are_settings():
    async with serving(["ok"]) as (server, client):
        await AnthropicSummarizer(client, model="tiny", max_words=50, focus="the money")(HISTORY)

    assert server.requests[0].body["model"] == "tiny"
    assert "50 words" in prompt_of(server.requests[0].body)
    assert "the money" in prompt_of(server.requests[0].body)


async def test_the_model_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("SUMMARY_MODEL", "from-the-environment")

    async with serving(["ok"]) as (server, client):
        await AnthropicSummarizer(client)(HISTORY)

    assert server.requests[0].body["model"] == "from-the-environment"


async def test_a_client_is_created_from_the_environment(
    monkeypatch,
):
    async with MessagesServer(["ok"]) as server:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "from-the-environment")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        summary = await AnthropicSummarizer()(HISTORY)

    assert summary.text == "ok"
    assert server.refused == []


async def test_without_client_and_credentials_the_extractive_summarizer_writes_and_is_named():
    summary = await AnthropicSummarizer(max_words=300)(HISTORY)

    assert summary.text == ExtractiveSummarizer(300).summarize(HISTORY)
    assert summary.writer == "ExtractiveSummarizer"


@pytest.mark.parametrize(
    "reply",
    [
        answer_with("half a sent", stop_reason="max_tokens"),
        answer_with("I'd rather call", tool_use("bash", {})),
        answer_with(thinking("only thoughts")),
        answer_with(),
        answer_with("  \n"),
        refusal("No."),
        answer_with("later", stop_reason="pause_turn"),
    ],
    ids=["cut off", "tool_use", "thinking only", "empty", "blank", "refusal", "paused"],
)
async def test_an_incomplete_answer_is_a_failure(reply):
    async with serving([reply]) as (_, client):
        with pytest.raises(SummaryFailed):
            await AnthropicSummarizer(client)(HISTORY)


@pytest.mark.parametrize("settings", [{}, {"max_words": 40}, {"max_tokens": 100}, {"window": 6000}])
async def test_an_answer_cut_off_is_requested_once_more_with_fewer_words_and_more_tokens(
    settings: dict[str, Any],
):
    cut = answer_with("half a sent", stop_reason="max_tokens")
    async with serving([cut, "Whole."]) as (server, client):
        summary = await summarize_with_retry(
            AnthropicSummarizer(client, **settings), HISTORY, Retry(sleep=no_sleep)
        )

    first, second = server.requests
    assert (summary.text, summary.attempts) == ("Whole.", 2)
    assert second.body["max_tokens"] >= first.body["max_tokens"]
    assert second.body["messages"] != first.body["messages"]


@pytest.mark.parametrize(
    ("reply", "calls"), [(refusal("No."), 1), (answer_with("hal", stop_reason="max_tokens"), 2)]
)
@pytest.mark.parametrize("mode", ["transcript", "inline"])
async def test_a_refused_request_is_not_sent_again(reply, calls, mode):
    async with serving(lambda _: reply) as (server, client):
        with pytest.raises(SummaryFailed, match="no summary"):
            await summarize_with_retry(
                AnthropicSummarizer(client, "m", mode), HISTORY, Retry(sleep=no_sleep)
            )

    asked = [str(request.body["messages"]) for request in server.requests]
    assert len(asked) == len(set(asked)) == calls


async def test_thinking_before_the_summary_is_not_part_of_it():
    async with serving([answer_with(thinking("let me see"), "The summary.")]) as (_, client):
        assert (await AnthropicSummarizer(client)(HISTORY)).text == "The summary."


@pytest.mark.parametrize(
    "failure",
    [server_error(), overloaded(), rate_limited(0), Cut(), Cut(after=answer_with("half a line"))],
)
async def test_the_sdks_own_retries_are_off(failure):
    async with serving([failure, answer_with("never")], max_retries=7) as (server, client):
        with pytest.raises(anthropic.APIError):
            await AnthropicSummarizer(client)(HISTORY)

    assert server.calls == 1


async def test_a_history_longer_than_the_models_window_is_summarized_in_parts_that_fit():
    long = conversation(*(chat(20, words=100) for _ in range(20)))
    model = Model(window=8000)

    async with serving(lambda body: f"Part of {len(prompt_of(body))} characters.", model) as (
        server,
        client,
    ):
        summarize = AnthropicSummarizer(client, window=model.window)
        summary = await summarize_with_retry(summarize, long, Retry(sleep=no_sleep))

    assert server.refused == []
    assert server.calls > 10
    assert summary.attempts == server.calls
    assert summary.input_tokens == sum(request.tokens for request in server.requests)
    assert all(
        "<earlier_summary>\nPart of" in prompt_of(request.body) for request in server.requests[1:]
    )


async def test_a_prompt_that_the_api_refuses_as_too_long_is_cut_in_half():
    async with serving([prompt_too_long(), "first half", "both"]) as (server, client):
        summary = await summarize_with_retry(
            AnthropicSummarizer(client), chat(8), Retry(sleep=no_sleep)
        )

    assert summary.text == "both"
    assert "first half" in prompt_of(server.requests[2].body)
    assert server.calls == 3


# Inline -------------------------------------------------------------------------------------------


def inline(client: anthropic.AsyncAnthropic, **settings: Any) -> AnthropicSummarizer:
    return AnthropicSummarizer(
        client, model="some-model", mode="inline", **{"tools": TOOLS, **settings}
    )


async def test_an_inline_request_follows_the_agents_own_prompt():
    system: Any = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]

    async with serving(["ok"]) as (server, client):
        await inline(client, system=system, request_options={"metadata": {"user_id": "u"}})(HISTORY)

    body = server.requests[0].body
    assert body["messages"][:-1] == HISTORY
    assert body["messages"][-1] == {"role": "user", "content": instructions(1200)}
    assert (body["system"], body["tools"], body["metadata"]) == (system, TOOLS, {"user_id": "u"})
    assert "tool_choice" not in body


async def test_an_inline_request_reads_the_agents_prompt_cache():
    marked: Any = text("Read all of this. " * 4000) | {"cache_control": {"type": "ephemeral"}}
    history: list[Message] = [user(marked)]

    async with serving(["Working on it.", "The summary."]) as (server, client):
        await client.messages.create(
            model="some-model", max_tokens=99, system="Be brief.", tools=TOOLS, messages=history
        )
        summary = await inline(client, system="Be brief.")([*history, assistant("Working on it.")])

    assert server.requests[1].usage is not None
    assert (
        summary.cached_tokens
        == server.requests[1].usage.cache_read_input_tokens
        > 0.9 * summary.input_tokens
    )


async def test_an_inline_request_that_is_too_long_is_sent_again_as_a_transcript():
    async with serving([prompt_too_long(), "from the transcript"]) as (server, client):
        summary = await summarize_with_retry(inline(client), HISTORY, Retry(sleep=no_sleep))

    assert summary.text == "from the transcript"
    assert prompt_of(server.requests[1].body).startswith("<transcript>")
    assert "tools" not in server.requests[1].body


async def test_an_inline_request_with_a_lone_surrogate_is_sent_as_a_transcript():
    async with serving(["from the transcript"]) as (_, client):
        assert (await inline(client)([user("half a pair \ud83d")])).text == "from the transcript"


async def test_an_inline_request_has_the_agents_thinking_unchanged():
    async with serving([answer_with(thinking("hm"), "Yes."), "ok"]) as (server, client):
        options: Any = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
        reply = await client.messages.create(
            model="some-model",
            max_tokens=2048,
            tools=TOOLS,
            messages=[user("Really?")],
            **options,
        )
        summary = await inline(client, request_options=options)(
            [user("Really?"), {"role": "assistant", "content": reply.content}]
        )

    assert summary.text == "ok"
    assert server.refused == []


async def test_a_transcript_has_no_thinking():
    async with serving(["ok"]) as (server, client):
        await AnthropicSummarizer(client)([user("Really?"), assistant(thought("secret"), "Yes.")])

    assert "secret" not in str(server.requests[0].body)


# Settings -----------------------------------------------------------------------------------------


def test_mode_inline_needs_the_agents_model():
    with pytest.raises(SettingsError, match="model"):
        AnthropicSummarizer(mode="inline")
