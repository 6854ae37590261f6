"""Rules of the Messages API for a conversation, written a second time.

Written without ctxpipe on purpose, so that a mistake in its own checks cannot hide in the tests
too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

LONE = re.compile("[\ud800-\udfff]")
THOUGHTS = ("thinking", "redacted_thinking")


def faults(
    messages: Sequence[Mapping[str, Any]],
    *,
    alternate: bool = False,
    end_user: bool = False,
    pending_ok: bool = True,
) -> list[str]:
    """Return what the API would refuse, as sentences; empty for a valid conversation.

    With *alternate* the roles must alternate strictly behind the head, with *end_user* the user
    must speak last; without *pending_ok* even the last calls need their results.
    """
    body = list(messages)
    while body and body[0]["role"] == "system":
        del body[0]
    found = [
        f"message {i}: {fault}"
        for i, message in enumerate(body)
        for fault in _faults_within(message)
    ]
    found += [
        f"message {i}: {fault}"
        for i in range(len(body))
        for fault in _faults_between(body, i, pending_ok)
    ]
    found += [
        f"message {i}: {fault}" for i in range(len(body)) for fault in _faults_of_place(body, i)
    ]
    if body and body[0]["role"] != "user":
        found.append("the first message is not the user's")
    if alternate:
        pairs = enumerate(pairwise(body), 1)
        found += [
            f"message {i}: same role as before" for i, (a, b) in pairs if a["role"] == b["role"]
        ]
    if end_user and body and body[-1]["role"] != "user":
        found.append("the last message is not the user's")
    return found


def parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The blocks of a message as dicts, bare text as a text block."""
    content = message["content"]
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [dict(part) if isinstance(part, Mapping) else part.model_dump() for part in content]


def ids(message: Mapping[str, Any], kind: str) -> list[str]:
    """The ids of the calls (tool_use), or of the calls that are answered (tool_result)."""
    key = "id" if kind == "tool_use" else "tool_use_id"
    return [part[key] for part in parts(message) if part["type"] == kind]


def _faults_within(message: Mapping[str, Any]) -> Iterator[str]:
    held = parts(message)
    kinds = [part.get("type") for part in held]
    if not held:
        yield "nothing in it"
    if any(part["type"] == "text" and not part["text"].strip() for part in held):
        yield "a blank text"
    if message["role"] != "assistant" and {"tool_use", *THOUGHTS} & set(kinds):
        yield f"a {message['role']} message cannot call or think"
    if message["role"] != "user" and "tool_result" in kinds:
        yield f"a {message['role']} message cannot answer a call"
    if message["role"] == "assistant" and kinds and kinds[-1] in THOUGHTS:
        yield "thinking stands last"
    results = [place for place, kind in enumerate(kinds) if kind == "tool_result"]
    if results != list(range(len(results))):
        yield "a result stands behind something else"
    content = message["content"]
    # A string has no blocks; to look at its characters would be most of the time of some tests.
    blocks = () if isinstance(content, str) else content
    if any(isinstance(part, Mapping) and part.get("caller", part) is None for part in blocks):
        yield "a caller that is null"
    if not _encodable(message["content"]):
        yield "a lone surrogate"


def _faults_of_place(body: Sequence[Mapping[str, Any]], index: int) -> Iterator[str]:
    """Return what is wrong with the place of a system message in the middle."""
    if body[index]["role"] != "system":
        return
    spoken = [message for message in body[:index] if message["role"] != "system"]
    if spoken[-1]["role"] != "user" and not _ends_in_server_result(spoken[-1]):
        yield "a system message that does not end what the user said"
    if index + 1 < len(body) and body[index + 1]["role"] == "user":
        yield "a system message in the middle of what the user said"


def _ends_in_server_result(message: Mapping[str, Any]) -> bool:
    return any(part["type"].endswith("_tool_result") for part in parts(message)[-1:])


def _faults_between(
    body: Sequence[Mapping[str, Any]], index: int, pending_ok: bool
) -> Iterator[str]:
    last = index == len(body) - 1
    calls = ids(body[index], "tool_use")
    answers = [] if last else ids(body[index + 1], "tool_result")
    if not last and len(set(calls)) < len(calls):
        yield f"two calls of one id: {sorted(calls)}"
    if not (last and pending_ok) and sorted(calls) != sorted(answers) and calls:
        yield f"calls {sorted(calls)}, but the answers behind it are for {sorted(answers)}"
    asked = ids(body[index - 1], "tool_use") if index else []
    for orphan in set(ids(body[index], "tool_result")) - set(asked):
        yield f"an answer to {orphan!r}, which nobody called"


def _encodable(value: object) -> bool:
    if isinstance(value, str):
        return value.isascii() or LONE.search(value) is None
    if isinstance(value, Mapping):
        # what is signed may not be touched, whatever it holds
        signed = value.get("type") in THOUGHTS
        return signed or all(_encodable(key) and _encodable(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_encodable, value))
    return True
