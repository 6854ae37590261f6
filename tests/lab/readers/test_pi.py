"""Sessions of pi: which entries are the conversation, and what the blocks become."""

from __future__ import annotations

from typing import Any

import pytest
from recorded import lines

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.transcripts import parse_transcript
from ctxpipe.messages import blocks, texts, tool_results

HEADER = {"type": "session", "version": 3, "id": "s", "cwd": "/tmp/project"}


def entry(number: int, parent: int | None, message: Any, **more: Any) -> dict[str, Any]:
    parent_id = None if parent is None else f"e{parent}"
    fields = {"type": "message", "id": f"e{number}", "parentId": parent_id, "message": message}
    return fields | more


def said(text: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"role": "assistant", "content": content, "stopReason": "stop", **more}


ASKED = {"role": "user", "content": "Go."}


def test_only_the_branch_of_the_last_entry_is_the_conversation():
    session = [
        HEADER,
        entry(1, None, ASKED),
        entry(2, 1, said("Which one?")),
        entry(3, 2, {"role": "user", "content": "TAKEN BACK"}),
        entry(4, 3, said("TAKEN BACK")),
        entry(5, 2, {"role": "user", "content": "The shop."}),
        entry(6, 5, said("Done.")),
    ]

    found = parse_transcript(lines(*session))

    assert [" ".join(texts(message)) for message in found.messages] == [
        *("Go.", "Which one?"),
        *("The shop.", "Done."),
    ]
    assert found.dropped == {"not a message": 1, "taken back by the user": 2}


def test_a_session_of_the_first_version_has_no_branches():
    session = [
        {"type": "session", "id": "s", "cwd": "/tmp/project"},
        {"type": "message", "message": ASKED},
        {"type": "message", "message": said("Done.")},
    ]

    assert parse_transcript(lines(*session)).calls == 1


def test_a_command_of_the_user_and_the_summary_of_a_branch_are_sent_and_a_compaction_is_not():
    session = [
        HEADER,
        entry(1, None, {"role": "bashExecution", "command": "ls", "output": "a.py"}),
        entry(2, 1, {"role": "bashExecution", "command": "x", "excludeFromContext": True}),
        entry(3, 2, None, type="branch_summary", summary="They tried b.py."),
        entry(4, 3, None, type="compaction", summary="SUMMARY"),
        entry(5, 4, said("Done.")),
    ]

    found = parse_transcript(lines(*session))

    assert list(texts(found.messages[0])) == ["ls", "a.py", "They tried b.py."]
    assert "SUMMARY" not in str(found.messages)
    assert found.dropped["summary of a compaction"] == 1


def test_a_failed_call_is_an_error_and_thinking_keeps_its_signature():
    content = [
        {"type": "thinking", "thinking": "hm", "thinkingSignature": "c2ln"},
        {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {"command": "x"}},
    ]
    failed = {"role": "toolResult", "toolCallId": "c1", "isError": True, "content": "no such file"}
    session = [
        HEADER,
        entry(1, None, ASKED),
        entry(2, 1, said("", content=content)),
        entry(3, 2, failed),
    ]

    _, reply, results = parse_transcript(lines(*session)).messages

    thinking, _ = blocks(reply)
    [result] = tool_results([results])
    assert thinking == {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    assert result.is_error


def test_a_second_session_in_a_file_is_refused():
    session = [HEADER, entry(1, None, ASKED), entry(2, 1, said("Done.")), HEADER]

    with pytest.raises(TranscriptError, match="line 4: a second conversation"):
        parse_transcript(lines(*session))
