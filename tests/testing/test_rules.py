"""Every rule of the Messages API.

A request that breaks it is refused in the API's words, and a valid one like it is answered.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx2
import pytest
from in_memory import messages_api
from sdks import refusal_of

from ctxpipe.testing import MessagesServer, Model, problems

USER = {"role": "user", "content": "go"}
MARK = {"cache_control": {"type": "ephemeral"}}


def call(*ids: str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": i, "name": "ls", "input": {}} for i in ids],
    }


def result(*ids: str) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": i, "content": "ok"} for i in ids],
    }


def said(role: str, *texts: str) -> dict[str, Any]:
    return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}


def with_text_before(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": "look"}, *message["content"]]}


def with_text_after(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": [*message["content"], {"type": "text", "text": "look"}]}


def marked(count: int) -> dict[str, Any]:
    return {
        "role": "user",
        "content": [{"type": "text", "text": str(n), **MARK} for n in range(count)],
    }


def thought(*after: str) -> dict[str, Any]:
    texts = [{"type": "text", "text": text} for text in after]
    return {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, *texts],
    }


def search(number: int = 1, kind: str = "server_tool_use") -> dict[str, Any]:
    """A call of the API's own web search."""
    return {"type": kind, "id": f"srvtoolu_{number}", "name": "web_search", "input": {"query": "q"}}


def found(number: int = 1, kind: str = "web_search_tool_result") -> dict[str, Any]:
    return {"type": kind, "tool_use_id": f"srvtoolu_{number}", "content": []}


def assistant(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": b} if isinstance(b, str) else b for b in blocks],
    }


def user(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {**assistant(*blocks), "role": "user"}


def tool(called: str = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": called, "name": "ls", "input": {}, **fields}


def outcome(name: str = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": "ok", **fields}


def ordered(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": text, **fields}


def cached(ttl: str) -> dict[str, Any]:
    return {"type": "text", "text": ttl, "cache_control": {"type": "ephemeral", "ttl": ttl}}


CODE = {
    "type": "server_tool_use",
    "id": "srvtoolu_1",
    "name": "code_execution",
    "input": {"code": "ls()"},
}
CODE_RESULT = {
    "type": "code_execution_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": {
        "type": "code_execution_result",
        "stdout": "",
        "stderr": "",
        "return_code": 0,
        "content": [],
    },
}
BY_CODE: dict[str, Any] = {"caller": {"type": "code_execution_20260120", "tool_id": "srvtoolu_1"}}
SUMMARY = {"type": "compaction", "content": "so far"}
ORDER: dict[str, Any] = ordered("be brief")

UNCHECKED = Model(thinking="unchecked")

RULES: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], str]] = {
    "a call needs its result in the next message": (
        [USER, call("a"), USER],
        [USER, call("a"), result("a"), USER],
        (
            "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: "
            "a. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message."
        ),
    ),
    "all calls of a batch need their results": (
        [USER, call("a", "b", "c"), result("b")],
        [USER, call("a", "b", "c"), result("c", "a", "b")],
        (
            "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: "
            "a, c."
        ),
    ),
    "the last message may not call": (
        [USER, call("a")],
        [USER, call("a"), result("a")],
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a.",
    ),
    "a result needs its call in the message before": (
        [USER, said("assistant", "hm"), result("a")],
        [USER, call("a"), result("a")],
        (
            "messages.2.content.0: unexpected `tool_use_id` found in `tool_result` blocks: a. Each "
            "`tool_result` block must have a corresponding `tool_use` block in the previous "
            "message."
        ),
    ),
    "a result is not answered twice": (
        [USER, call("a"), result("a", "a")],
        [USER, call("a"), result("a")],
        (
            "messages.2: each tool_use must have a single result. Found multiple `tool_result` "
            "blocks with id: a"
        ),
    ),
    "results come before text": (
        [USER, call("a"), with_text_before(result("a"))],
        [USER, call("a"), with_text_after(result("a"))],
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a.",
    ),
    "only the assistant calls": (
        [{**call("a"), "role": "user"}, result("a")],
        [USER, call("a"), result("a")],
        "messages.0: `tool_use` blocks can only be in `assistant` messages",
    ),
    "only the user answers calls": (
        [USER, call("a"), {**result("a"), "role": "assistant"}, USER],
        [USER, call("a"), result("a"), USER],
        "messages.2: `tool_result` blocks can only be in `user` messages",
    ),
    "ids are unique within a message": (
        [USER, call("a", "a"), result("a")],
        [USER, call("a"), result("a"), call("a"), result("a")],
        "messages.1.content.1: `tool_use` ids must be unique",
    ),
    "ids have plain characters": (
        [USER, call("../a"), result("../a")],
        [USER, call("toolu_A-1"), result("toolu_A-1")],
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ),
    "the first message is the user's": (
        [said("assistant", "hi"), USER],
        [USER, said("assistant", "hi"), USER],
        'messages: first message must use the "user" role',
    ),
    "there is a message": ([], [USER], "messages: at least one message is required"),
    "an unknown role is none": (
        [{"role": "tool", "content": "x"}],
        [USER],
        "messages.0.role: Input should be 'user', 'assistant' or 'system'",
    ),
    "a message has content": (
        [USER, {"role": "assistant", "content": []}, USER],
        [USER, said("assistant", "hi"), USER],
        (
            "messages.1: all messages must have non-empty content except for the optional final "
            "assistant message"
        ),
    ),
    "bare text is not empty": (
        [{"role": "user", "content": ""}],
        [{"role": "user", "content": "."}],
        (
            "messages.0: all messages must have non-empty content except for the optional final "
            "assistant message"
        ),
    ),
    "a text block is not empty": (
        [said("user", "hi", "")],
        [said("user", "hi", "there")],
        "messages: text content blocks must be non-empty",
    ),
    "a text block is not blank": (
        [said("user", "hi", " \n\t")],
        [said("user", "hi", " \n\tthere")],
        "messages: text content blocks must contain non-whitespace text",
    ),
    "bare text is not blank": (
        [{"role": "user", "content": "\n"}],
        [{"role": "user", "content": "\n."}],
        "messages: text content blocks must contain non-whitespace text",
    ),
    "newer models refuse a prefill": (
        [USER, said("assistant", "The answer is")],
        [USER, said("assistant", "The answer is"), USER],
        (
            "This model does not support assistant message prefill. The conversation must end with "
            "a user message."
        ),
    ),
    "a prefill ends in no blank": (
        [USER, said("assistant", "The answer is ")],
        [USER, said("assistant", "The answer is")],
        "messages: final assistant content cannot end with trailing whitespace",
    ),
    "four cache marks and no more": (
        [marked(5)],
        [marked(4)],
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "thinking is not the last block": (
        [USER, thought(), USER],
        [USER, thought("so"), USER],
        "messages.1: The final block in an assistant message cannot be `thinking`.",
    ),
    "only the assistant thinks": (
        [{**thought("so"), "role": "user"}],
        [USER, thought("so"), USER],
        "messages.0: `thinking` blocks can only be in `assistant` messages",
    ),
    "thinking is signed by the model": (
        [USER, thought("so"), USER, said("assistant", "hm"), USER],
        [USER, said("assistant", "so"), USER],
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "a system message follows the user's": (
        [USER, said("assistant", "hm"), {"role": "system", "content": "be brief"}, USER],
        [USER, {"role": "system", "content": "be brief"}, said("assistant", "hm"), USER],
        "messages.2: a `system` message must follow a `user` message",
    ),
    "the prompt fits the window": (
        [said("user", "x" * 401)],
        [said("user", "x" * 300)],
        "prompt is too long: 401 tokens > 400 maximum",
    ),
    "no private fields in a message": (
        [{**USER, "_pinned": True}],
        [USER],
        "messages.0._pinned: Extra inputs are not permitted",
    ),
    "a block has its fields": (
        [{"role": "user", "content": [{"type": "text"}]}],
        [said("user", "hi")],
        "messages.0.content.0.text.text: Field required",
    ),
    "a block's fields have their types": (
        [
            USER,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "a", "name": "ls", "input": "{}"}],
            },
        ],
        [USER, call("a"), result("a")],
        "messages.1.content.0.tool_use.input: Input should be a valid dictionary",
    ),
    "a call of the API's own tool is answered in its turn": (
        [USER, assistant("hm", search()), USER],
        [USER, assistant("hm", search(), found(), "so"), USER],
        (
            "messages.1: `web_search` tool use with id `srvtoolu_1` was found without a "
            "corresponding `web_search_tool_result` block"
        ),
    ),
    "an interrupted turn is not paused": (
        [USER, assistant(search()), USER, assistant(found(), "so"), USER],
        [USER, assistant(search()), assistant(found(), "so"), USER],
        "messages.1: `web_search` tool use with id `srvtoolu_1` was found without",
    ),
    "the API's own tool answers no call of nobody": (
        [USER, assistant(found(), "so"), USER],
        [USER, assistant(search(), found(), "so"), USER],
        (
            "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` "
            "blocks: srvtoolu_1. Each `web_search_tool_result` block must have a corresponding "
            "`server_tool_use` block before it."
        ),
    ),
    "the result of the API's own tool comes after its call": (
        [USER, assistant(found(), search(), "so"), USER],
        [USER, assistant(search(), search(2), found(2), found(), "so"), USER],
        "messages.1.content.0: unexpected `tool_use_id` found in `web_search_tool_result` blocks",
    ),
    "each call of the API's own tools has its own result": (
        [USER, assistant(search(), found(), found(), "so"), USER],
        [USER, assistant(search(), found(), "so"), USER],
        "messages.1.content.2: unexpected `tool_use_id` found in `web_search_tool_result` blocks",
    ),
    "an MCP server's tool is answered too": (
        [USER, assistant({**search(kind="mcp_tool_use"), "server_name": "s"}, "so"), USER],
        [
            USER,
            assistant(
                {**search(kind="mcp_tool_use"), "server_name": "s"}, found(kind="mcp_tool_result")
            ),
            USER,
        ],
        (
            "messages.1: `web_search` tool use with id `srvtoolu_1` was found without a "
            "corresponding `mcp_tool_result`"
        ),
    ),
    "beside a waiting call of the API's the user gives results alone": (
        [
            USER,
            assistant(search(), tool()),
            user(outcome(), "and?"),
            assistant(found(), "so"),
            USER,
        ],
        [USER, assistant(search(), tool()), user(outcome()), assistant(found(), "so"), USER],
        "messages.1: `web_search` tool use with id `srvtoolu_1` was found without",
    ),
    "a second message of the user's ends the turn as well": (
        [USER, assistant(search(), tool()), user(outcome()), USER],
        [USER, assistant(search(), tool()), user(outcome())],
        "messages.1: `web_search` tool use with id `srvtoolu_1` was found without",
    ),
    "a program gets its results over several rounds": (
        [
            USER,
            assistant(CODE, tool(**BY_CODE)),
            user(outcome()),
            assistant(tool("b")),
            user(outcome("b"), "go"),
        ],
        [
            USER,
            assistant(CODE, tool(**BY_CODE)),
            user(outcome()),
            assistant(tool("b")),
            user(outcome("b")),
        ],
        (
            "messages.1: `code_execution` tool use with id `srvtoolu_1` was found without a "
            "corresponding `code_execution_tool_result` block"
        ),
    ),
    "a program gets results alone": (
        [USER, assistant(CODE, CODE_RESULT, tool(**BY_CODE)), user(outcome(), "and?")],
        [USER, assistant(CODE, CODE_RESULT, tool()), user(outcome(), "and?")],
        "messages.2: the answer to programmatic tool calls may hold only `tool_result` blocks",
    ),
    "the user runs no tool of the API's": (
        [user(search()), assistant(found())],
        [USER, assistant(search(), found(), "so"), USER],
        "messages.0: `server_tool_use` blocks can only be in `assistant` messages",
    ),
    "the user answers no tool of the API's": (
        [USER, assistant(search()), user(found())],
        [USER, assistant(search())],
        "messages.2: `web_search_tool_result` blocks can only be in `assistant` messages",
    ),
    "ids of the API's own tools have their prefix": (
        [
            USER,
            assistant({**search(), "id": "toolu_1"}, {**found(), "tool_use_id": "toolu_1"}, "so"),
            USER,
        ],
        [USER, assistant(search(), found(), "so"), USER],
        (
            "messages.1.content.0.server_tool_use.id: String should match pattern "
            "'^srvtoolu_[a-zA-Z0-9_]+$'"
        ),
    ),
    "a tool has a name": (
        [USER, assistant(tool(name="")), user(outcome())],
        [USER, assistant(tool(name="n" * 200)), user(outcome())],
        "messages.1.content.0.tool_use.name: String should have at least 1 character",
    ),
    "a tool's name is short": (
        [USER, assistant(tool(name="n" * 201)), user(outcome())],
        [USER, assistant(tool(name="n")), user(outcome())],
        "messages.1.content.0.tool_use.name: String should have at most 200 characters",
    ),
    "a caller is named or left out": (
        [USER, assistant(tool(caller=None)), user(outcome())],
        [USER, assistant(tool(caller={"type": "direct"})), user(outcome())],
        "messages.1.content.0.tool_use.caller: Input should be an object",
    ),
    "a server's input is an object": (
        [USER, assistant({**search(), "input": "q"}, found(), "so"), USER],
        [USER, assistant(search(), found(), "so"), USER],
        "messages.1.content.0.server_tool_use.input: Input should be a valid dictionary",
    ),
    "an error says something": (
        [USER, call("a"), user(outcome(is_error=True, content=""))],
        [USER, call("a"), user(outcome(is_error=True))],
        "messages.2.content.0.tool_result: content cannot be empty if `is_error` is true",
    ),
    "an error says it in text": (
        [
            USER,
            call("a"),
            user(outcome(is_error=True, content=[{"type": "image", "source": {"type": "url"}}])),
        ],
        [
            USER,
            call("a"),
            user(outcome(is_error=False, content=[{"type": "image", "source": {"type": "url"}}])),
        ],
        "messages.2.content.0.tool_result: all content must be type `text` if `is_error` is true",
    ),
    "thinking is not marked for the cache": (
        [
            USER,
            assistant({"type": "thinking", "thinking": "hm", "signature": "s", **MARK}, "so"),
            USER,
        ],
        [USER, assistant({"type": "thinking", "thinking": "hm", "signature": "s"}, "so"), USER],
        "messages.1.content.0.thinking.cache_control: Extra inputs are not permitted",
    ),
    "thinking has a signature": (
        [USER, assistant({"type": "thinking", "thinking": "hm"}, "so"), USER],
        [USER, assistant({"type": "thinking", "thinking": "", "signature": "s"}, "so"), USER],
        "messages.1.content.0.thinking.signature: Field required",
    ),
    "an empty signature is none": (
        [USER, assistant({"type": "thinking", "thinking": "hm", "signature": ""}, "so"), USER],
        [USER, assistant({"type": "redacted_thinking", "data": "s"}, "so"), USER],
        "messages.1.content.0: Invalid `signature` in `thinking` block",
    ),
    "a mark for an hour stands before the shorter ones": (
        [user(cached("5m"), cached("1h"))],
        [user(cached("1h"), cached("5m"))],
        "a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block",
    ),
    "a whole reply is no message": (
        [USER, {**said("assistant", "hi"), "id": "msg_1", "usage": {}}, USER],
        [USER, said("assistant", "hi"), USER],
        "messages.1.id: Extra inputs are not permitted",
    ),
    "a system message comes before the assistant's": (
        [USER, ORDER, USER],
        [USER, ORDER, ordered("and kind"), said("assistant", "hm"), USER, ORDER],
        (
            "messages.1: a `system` message must be followed by an `assistant` message or end the "
            "conversation"
        ),
    ),
    "a system message follows no turn that is over": (
        [USER, said("assistant", "hm"), ORDER],
        [USER, assistant(search(), found()), ORDER],
        "messages.2: a `system` message must follow a `user` message",
    ),
    "a system message stands between no call and its result": (
        [USER, call("a"), ORDER, result("a")],
        [USER, call("a"), result("a"), ORDER],
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a.",
    ),
    "a system message is not the first": (
        [ORDER, USER],
        [ordered("", output_config={"effort": "low"}), USER],
        'messages: first message must use the "user" role',
    ),
    "effort alone may be set anywhere, but not beside words": (
        [USER, said("assistant", "hm"), ordered("", output_config={"effort": "low"}), ORDER, USER],
        [USER, said("assistant", "hm"), ordered("", output_config={"effort": "low"}), USER],
        "messages.2: a `system` message must follow a `user` message",
    ),
    "only system messages are shown for one turn": (
        [{**USER, "clear_at": "next_user_message"}],
        [USER, ordered("be brief", clear_at="next_user_message")],
        "messages.0.clear_at: clear_at is only permitted on role 'system' messages",
    ),
    "what is shown for one turn is not marked": (
        [USER, {**user(cached("5m")), "role": "system", "clear_at": "next_user_message"}],
        [USER, {**user(cached("5m")), "role": "system"}],
        "messages.1.content.0: cache_control is not permitted on a turn-scoped system message",
    ),
    "what is shown for one turn is text": (
        [
            USER,
            {**user({"type": "tool_removal"}), "role": "system", "clear_at": "next_user_message"},
        ],
        [USER, {**user({"type": "tool_removal"}), "role": "system"}],
        "messages.1: a turn-scoped system message supports text blocks only",
    ),
    "a summary with a signature stands first": (
        [USER, assistant({**SUMMARY, "signature": "s"}, "so"), USER],
        [assistant({**SUMMARY, "signature": "s"}), said("assistant", "so"), USER],
        (
            "messages.1.content.0: `compaction` block must be sent first, in place of the messages "
            "it summarizes"
        ),
    ),
    "of summaries with a signature there is one": (
        [assistant({**SUMMARY, "signature": "s"}), USER, assistant(SUMMARY, "so"), USER],
        [USER, assistant(SUMMARY, "so"), USER, assistant(SUMMARY, "so"), USER],
        "messages: exactly one `compaction` block may be sent, the newest",
    ),
    "a summary comes back without fields that a dump adds": (
        [USER, assistant({**SUMMARY, "citations": None}, "so"), USER],
        [USER, assistant({**SUMMARY, "content": None}, "so"), USER],
        "messages.1.content.0.compaction.citations: Extra inputs are not permitted",
    ),
}
MODELS = {
    "the last message may not call": Model(prefill=True),
    "a prefill ends in no blank": Model(prefill=True),
    "thinking is signed by the model": Model(thinking="signed"),
    "the prompt fits the window": Model(window=400),
}


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "hologram", "of": {"deep": [1, None]}}],
        [
            {"type": "hologram_tool_result", "tool_use_id": "x"},
            {"type": "hologram_tool_result", "tool_use_id": "a:b"},
        ],
        [{"type": "hologram_tool_use", "id": "a:b"}, {"type": "text", "text": "hi"}],
    ],
)
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_unknown_blocks_are_accepted(content: list[dict[str, Any]], role):
    body = {
        "model": "m",
        "max_tokens": 9,
        "messages": [USER, {"role": role, "content": content}, USER],
    }

    assert problems(body, Model()) == []


@asynccontextmanager
async def talk(
    model: Model = UNCHECKED,
) -> AsyncIterator[tuple[MessagesServer, anthropic.AsyncAnthropic]]:
    async with (
        MessagesServer(["fine"], model=model, counter=len) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="test", max_retries=0) as client,
    ):
        yield server, client


@pytest.mark.parametrize("rule", RULES)
async def test_a_broken_request_is_refused_in_the_apis_words_and_a_valid_one_answered(
    rule: str,
):
    broken, sound, wording = RULES[rule]
    model = MODELS.get(rule, UNCHECKED)
    async with messages_api(MessagesServer(["fine"], model=model, counter=len)) as (server, client):
        with pytest.raises(anthropic.BadRequestError) as caught:
            await client.messages.create(model="m", max_tokens=9, messages=broken)  # type: ignore[arg-type]
        reply = await client.messages.create(model="m", max_tokens=9, messages=sound)  # type: ignore[arg-type]

    refusal = refusal_of(caught.value)
    assert refusal["type"] == "invalid_request_error"
    assert refusal["message"].startswith(wording)
    assert reply.content[0].text == "fine"  # type: ignore[union-attr]
    assert [bool(request.problems) for request in server.requests] == [True, False]


@pytest.mark.parametrize("missing", ["model", "max_tokens", "messages"])
async def test_a_request_without_a_required_field_is_refused(missing):
    body = {"model": "m", "max_tokens": 9, "messages": [USER]}
    async with talk() as (server, _):
        broken = await post(
            server, json.dumps({k: v for k, v in body.items() if k != missing}).encode()
        )
        sound = await post(server, json.dumps(body).encode())

    assert broken.status_code == 400
    assert broken.json()["error"] == {
        "type": "invalid_request_error",
        "message": f"{missing}: Field required",
    }
    assert broken.json()["request_id"] == broken.headers["request-id"]
    assert sound.status_code == 200


@pytest.mark.parametrize(
    ("words", "wording"),
    [
        (b'"a\\ud83d b"', "no low surrogate in string: line 1 column"),
        (b'"a \\uDE00"', "invalid high surrogate in string: line 1 column"),
        (b'"a\xed\xa0\xbd b"', "The request body is not valid JSON: "),
        (b'"a', "The request body is not valid JSON: "),
    ],
)
async def test_lone_surrogates_and_broken_json_are_refused(words: bytes, wording):
    body = b'{"model":"m","max_tokens":9,"messages":[{"role":"user","content":%s}]}'
    async with talk() as (server, _):
        broken = await post(server, body % words)
        sound = await post(server, body % b'"a\\ud83d\\ude00 \\\\ud83d b"')

    assert broken.status_code == 400
    assert wording in broken.json()["error"]["message"]
    assert sound.status_code == 200


async def test_a_client_without_a_key_or_a_version_is_refused():
    body = json.dumps({"model": "m", "max_tokens": 9, "messages": [USER]}).encode()
    async with talk() as (server, _):
        no_key = await post(server, body, without="x-api-key")
        no_version = await post(server, body, without="anthropic-version")

    assert (no_key.status_code, no_key.json()["error"]["type"]) == (401, "authentication_error")
    assert (no_version.status_code, no_version.json()["error"]["type"]) == (
        400,
        "invalid_request_error",
    )


async def test_a_system_prompt_with_an_empty_block_is_refused():
    async with talk() as (_, client):
        with pytest.raises(
            anthropic.BadRequestError, match="system: text content blocks must be non-empty"
        ):
            await client.messages.create(
                model="m",
                max_tokens=9,
                messages=[{"role": "user", "content": "go"}],
                system=[{"type": "text", "text": ""}],
            )


async def test_marks_on_the_system_prompt_the_tools_and_the_request_count_as_well():
    mark: Any = MARK["cache_control"]
    async with talk() as (_, client):
        with pytest.raises(anthropic.BadRequestError, match=r"Found 5\."):
            await client.messages.create(
                model="m",
                max_tokens=9,
                messages=[marked(2)],  # type: ignore[list-item]
                system=[{"type": "text", "text": "be brief", "cache_control": mark}],
                tools=[{"name": "ls", "input_schema": {"type": "object"}, "cache_control": mark}],
                cache_control=mark,
            )


async def test_every_problem_of_a_request_is_recorded_not_only_the_first():
    async with talk() as (server, client):
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(
                model="m",
                max_tokens=9,
                messages=[said("assistant", ""), result("a")],  # type: ignore[list-item]
            )

    assert len(server.requests[0].problems) == 3
    assert server.refused == server.requests


async def test_count_tokens_checks_the_messages_but_needs_no_max_tokens_and_has_no_window():
    async with talk(Model(window=10)) as (_, client):
        counted = await client.messages.count_tokens(
            model="m", messages=[{"role": "user", "content": "x" * 100}]
        )
        with pytest.raises(anthropic.BadRequestError, match="without `tool_result` blocks"):
            await client.messages.count_tokens(model="m", messages=[USER, call("a"), USER])  # type: ignore[list-item]

    assert counted.input_tokens == 100


MALFORMED: dict[str, Any] = {
    "messages: Input should be a valid array": {"messages": "go"},
    "messages.0: Input should be an object": {"messages": ["go"]},
    "messages.0.content: Field required": {"messages": [{"role": "user"}]},
    "messages.0.content: Input should be a valid array": {
        "messages": [{"role": "user", "content": 7}]
    },
    "messages.0.content.0: Input should be an object with a type": {
        "messages": [{"role": "user", "content": ["go"]}]
    },
    "max_tokens: Input should be greater than or equal to 0": {"max_tokens": -1},
}


@pytest.mark.parametrize("wording", MALFORMED)
async def test_a_malformed_body_is_refused_before_its_content_is_checked(wording: str):
    body = {"model": "m", "max_tokens": 9, "messages": [USER], **MALFORMED[wording]}
    async with talk() as (server, _):
        broken = await post(server, json.dumps(body).encode())
        no_object = await post(server, b"[]")

    assert (broken.status_code, broken.json()["error"]["message"]) == (400, wording)
    assert no_object.json()["error"]["message"] == "Input should be a valid dictionary"


async def test_a_body_above_32_megabytes_is_refused():
    body = json.dumps(
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x" * 2**25}]}
    )
    async with talk() as (server, _):
        refused = await post(server, body.encode())

    assert (refused.status_code, refused.json()["error"]["type"]) == (413, "request_too_large")


def test_the_rules_can_be_used_without_a_server():
    assert problems({"model": "m", "max_tokens": 9, "messages": [USER]}, Model()) == []
    assert problems({"model": "m", "max_tokens": True, "messages": [USER]}, Model()) == [
        "max_tokens: Input should be a valid integer"
    ]


async def post(server: MessagesServer, body: bytes, without: str = "") -> httpx2.Response:
    headers = {
        "x-api-key": "test",
        "anthropic-version": "2023-06-01",
        "content-type": "application/json",
    }
    headers.pop(without, None)
    async with httpx2.AsyncClient() as client:
        return await client.post(f"{server.url}/v1/messages", content=body, headers=headers)
