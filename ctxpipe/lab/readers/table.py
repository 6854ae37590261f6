"""The table of all readers: how a recording of each format is recognized, and who reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..._values import JsonObject
from ..records import FileRecord, Recording
from . import (
    anthropic_messages,
    claude_code,
    codex,
    copilot,
    gemini_cli,
    gemini_requests,
    mini_swe_agent,
    openai_chat,
    openai_responses,
    opencode,
    pi,
    spans,
)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reader for the recordings of one *format*.

    *recognizes* returns True for a record that only this format has; one such record of a file is
    enough. *read* returns the conversation in all records of the file. It counts the records that
    it leaves out, and those of a kind that it does not know. It raises InvalidHistory, which names
    the place in the file, for a record that is not valid, and for a second conversation.
    """

    format: str
    recognizes: Callable[[JsonObject], bool]
    read: Callable[[Sequence[FileRecord]], Recording]


READERS: Sequence[Reader] = (
    Reader("Claude Code session", claude_code.is_session_line, claude_code.read),
    Reader("codex rollout", codex.is_rollout_line, codex.read),
    Reader("opencode export", opencode.is_export, opencode.read),
    Reader("gemini-cli session", gemini_cli.is_session_record, gemini_cli.read),
    Reader("Copilot CLI session", copilot.is_event, copilot.read),
    Reader("pi session", pi.is_session_entry, pi.read),
    Reader("mini-swe-agent trajectory", mini_swe_agent.is_trajectory, mini_swe_agent.read),
    Reader("OpenTelemetry spans", spans.is_span_record, spans.read),
    Reader("Gemini contents", gemini_requests.is_gemini_record, gemini_requests.read),
    Reader("OpenAI responses", openai_responses.is_response_record, openai_responses.read),
    Reader("OpenAI chat", openai_chat.is_chat_record, openai_chat.read),
    Reader("messages under a header", anthropic_messages.is_header, anthropic_messages.read),
    Reader("Anthropic messages", anthropic_messages.is_message_record, anthropic_messages.read),
)
"""All readers. The first one that recognizes a record of the file reads it."""


def find_reader(records: Iterable[JsonObject]) -> Reader | None:
    """Return the first reader that recognizes one of *records*, or None."""
    values = list(records)
    for reader in READERS:
        if any(reader.recognizes(value) for value in values):
            return reader
    return None
