"""A question of ctxpipe's own in each API's form: where it goes, and what its answer says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from histories import assistant, user

from ctxpipe.errors import SummaryFailed
from ctxpipe.summarizers import AgentAnswer, AgentSummarizer, Retry, summarize_with_retry
from ctxpipe.wire.formats import CHAT, MESSAGES, RESPONSES, Format, Gemini
from ctxpipe.wire.questions import HttpAnswer, QuestionRefused, http_model, question_headers

HISTORY = [user("Fix it."), assistant("Done.")]
GEMINI = Gemini("gemini-3-pro")
AZURE = "/openai/deployments/mine/chat/completions?api-version=2025-01-01"


class Server:
    """What an API answers to each question, one after the other, and what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.models: list[str | None] = []
        self.bodies: list[Any] = []

    async def send(self, _known: Format, model: str | None, content: bytes) -> HttpAnswer:
        self.models.append(model)
        self.bodies.append(json.loads(content))
        answer = self.answers.pop(0)
        if isinstance(answer, HttpAnswer):
            return answer
        return HttpAnswer(200, {}, json.dumps(answer).encode())


async def no_sleep(_seconds: float):
    """No wait between two attempts."""


async def summarize(server: Server, known: Format, values: Any = None, **settings: Any) -> Any:
    lent = http_model(known, {"model": "m"} if values is None else values, server.send)
    writer = AgentSummarizer(agent_model=lent, **settings)
    return await summarize_with_retry(writer, HISTORY, Retry(sleep=no_sleep))


def chat(text: str | None, reason: str = "stop", **more: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, **more}
    usage = {"prompt_tokens": 90, "completion_tokens": 9}
    usage |= {"prompt_tokens_details": {"cached_tokens": 40}}  # type: ignore[dict-item]
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return {"model": "m-2026", "choices": [choice], "usage": usage}


def response(*parts: Any, status: str = "completed", reason: str | None = None) -> dict[str, Any]:
    thought = {"type": "reasoning", "summary": []}
    said = {"type": "message", "role": "assistant", "content": list(parts)}
    details = None if reason is None else {"reason": reason}
    return {"status": status, "incomplete_details": details, "output": [thought, said]}


def said(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text}


def message(text: str, reason: str = "end_turn") -> dict[str, Any]:
    blocks = [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": text}]
    return {"type": "message", "content": blocks, "stop_reason": reason}


def candidate(text: str, reason: str = "STOP") -> dict[str, Any]:
    parts = [{"text": "hm", "thought": True}, {"text": text}]
    return {"candidates": [{"content": {"parts": parts}, "finishReason": reason}]}


@pytest.mark.parametrize(
    ("known", "reply"),
    [
        (CHAT, chat("All is well.")),
        (RESPONSES, response(said("All is "), said("well."))),
        (MESSAGES, message("All is well.")),
        (GEMINI, candidate("All is well.")),
    ],
)
async def test_a_summary_is_the_text_of_an_answer_without_its_thoughts(known: Format, reply: Any):
    summary = await summarize(Server(reply), known)

    assert summary.text == "All is well."


async def test_usage_and_cached_tokens_are_those_of_the_answer():
    summary = await summarize(Server(chat("All is well.")), CHAT)

    assert (summary.input_tokens, summary.cached_tokens, summary.output_tokens) == (90, 40, 9)
    assert summary.model == "m"


@pytest.mark.parametrize(
    ("known", "cut", "whole"),
    [
        (CHAT, chat("half", "length"), chat("Whole.")),
        (
            RESPONSES,
            response(said("half"), status="incomplete", reason="max_output_tokens"),
            response(said("Whole.")),
        ),
        (MESSAGES, message("half", "max_tokens"), message("Whole.")),
        (GEMINI, candidate("half", "MAX_TOKENS"), candidate("Whole.")),
    ],
)
async def test_an_answer_cut_off_is_asked_for_once_more_in_half_the_words(
    known: Format, cut: Any, whole: Any
):
    server = Server(cut, whole)

    summary = await summarize(server, known, max_words=100)

    assert (summary.text, summary.attempts) == ("Whole.", 2)
    first, second = map(json.dumps, server.bodies)
    assert "at most 100 words" in first
    assert "at most 50 words" in second
    if known is MESSAGES:
        assert server.bodies[1]["max_tokens"] == 2 * server.bodies[0]["max_tokens"]


@pytest.mark.parametrize(
    ("known", "reply"),
    [
        (CHAT, chat(None, "content_filter")),
        (CHAT, chat(None, refusal="I will not.")),
        (RESPONSES, response({"type": "refusal", "refusal": "I will not."})),
        (MESSAGES, message("I will not.", "refusal")),
        (GEMINI, candidate("", "SAFETY")),
        (GEMINI, {"promptFeedback": {"blockReason": "OTHER"}}),
    ],
)
async def test_a_refusal_is_not_asked_again(known: Format, reply: Any):
    server = Server(reply)

    with pytest.raises(SummaryFailed, match="refused to write a summary"):
        await summarize(server, known)

    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    ("known", "reply"),
    [
        (CHAT, chat(None)),
        (CHAT, chat("I call.", "tool_calls")),
        (CHAT, {"choices": []}),
        (RESPONSES, {"output": None, "status": "failed"}),
        (MESSAGES, message("", "end_turn")),
        (GEMINI, {"candidates": []}),
    ],
)
async def test_an_answer_without_a_whole_summary_is_tried_again(known: Format, reply: Any):
    with pytest.raises(SummaryFailed, match="3 attempts"):
        await summarize(Server(reply, reply, reply), known)


async def test_what_is_too_long_for_the_model_is_summarized_in_parts():
    error = {
        "error": {"message": "maximum context length is 9000", "code": "context_length_exceeded"}
    }
    refused = HttpAnswer(400, {}, json.dumps(error).encode())
    server = Server(refused, chat("The first."), chat("Both."))

    summary = await summarize(server, CHAT)

    assert summary.text == "Both."
    assert "The first." in json.dumps(server.bodies[2])


@pytest.mark.parametrize(("status", "attempts"), [(401, 1), (404, 1), (429, 3), (500, 3)])
async def test_an_error_is_tried_again_only_where_that_can_help(status: int, attempts: int):
    server = Server(*[HttpAnswer(status, {"retry-after": "1"}, b"{}")] * 3)

    with pytest.raises(SummaryFailed, match=f"status {status}") as failed:
        await summarize(server, CHAT)

    assert isinstance(failed.value.__cause__, QuestionRefused)
    assert len(server.bodies) == attempts


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]"])
async def test_an_answer_that_is_no_object_is_a_failure(content: bytes):
    server = Server(*[HttpAnswer(200, {}, content)] * 3)

    with pytest.raises(SummaryFailed, match="not"):
        await summarize(server, CHAT)


@pytest.mark.parametrize(
    ("named", "target"),
    [(None, AZURE), ("m", AZURE), ("a b", AZURE.replace("mine", "a%20b"))],
)
async def test_a_deployment_in_the_path_changes_only_with_the_model(named: str | None, target: str):
    server = Server(chat("All is well."))
    await summarize(server, CHAT, model=named)

    assert CHAT.question_target(AZURE, server.models[0]) == target


async def test_a_request_without_a_model_is_followed_by_a_question_without_one():
    server = Server(chat("All is well."))

    await summarize(server, CHAT, {"user": "u"})

    assert set(server.bodies[0]) == {"user", "messages"}


@pytest.mark.parametrize(
    ("target", "model", "asked"),
    [
        (
            "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse&key=k",
            None,
            "/v1beta/models/gemini-3-pro:generateContent?key=k",
        ),
        (
            "/v1/projects/p/locations/l/publishers/google/models/gemini-3-pro:generateContent",
            "small",
            "/v1/projects/p/locations/l/publishers/google/models/small:generateContent",
        ),
        ("/v1beta/models/m%3AgenerateContent", "small", "/v1beta/models/small:generateContent"),
    ],
)
def test_geminis_model_and_method_are_in_the_path(target: str, model: str | None, asked: str):
    assert GEMINI.question_target(target, model) == asked


def test_headers_that_describe_one_request_are_not_repeated():
    headers = [
        ("Authorization", "Bearer k"),
        ("X-Route", "eu"),
        ("Content-Length", "9"),
        ("Content-Encoding", "gzip"),
        ("Idempotency-Key", "one"),
        ("X-Stainless-Retry-Count", "0"),
        ("Accept", "text/event-stream"),
    ]

    assert question_headers(headers) == [
        ("Authorization", "Bearer k"),
        ("X-Route", "eu"),
        ("accept", "application/json"),
        ("accept-encoding", "identity"),
        ("content-type", "application/json"),
    ]


def test_an_answer_and_a_model_show_no_text_and_no_credentials():
    async def send(_known: Format, _model: str | None, _content: bytes) -> HttpAnswer:
        return HttpAnswer(200, {"set-cookie": "secret"}, b"secret")

    shown = repr(http_model(CHAT, {"model": "m", "user": "secret"}, send))
    shown += repr(AgentAnswer("secret")) + repr(HttpAnswer(200, {"a": "secret"}, b"secret"))

    assert "secret" not in shown
