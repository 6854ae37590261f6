"""Reader for sessions of GitHub Copilot CLI: ``~/.copilot/session-state/ID/events.jsonl``.

Each line is an event. The events of subagents are in the same file; they have an ``agentId``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..._values import JsonDict, JsonObject
from ...messages import field, kind
from ...wire.usage import usage
from ...wire.values import (
    arguments_object,
    has_text,
    opaque_block,
    result_block,
    text_block,
    thinking_block,
    use_block,
)
from ..records import FileRecord, Recording, valid_object
from .conversation import RecordedConversation

GROUPS = frozenset(
    {
        *("abort", "assistant", "capabilities", "command", "elicitation", "exit_plan_mode"),
        *("external_tool", "hook", "mcp", "permission", "sampling", "session", "skill"),
        *("subagent", "system", "tool", "user", "user_input"),
    }
)
"""Return the subject of an event: the part of its type before the first dot."""


def is_event(value: JsonObject) -> bool:
    """Return True if *value* is an event of a session."""
    if not isinstance(value.get("data"), Mapping) or "parentId" not in value:
        return False
    group, dot, _ = str(kind(value)).partition(".")
    return bool(dot) and group in GROUPS


def read(records: Sequence[FileRecord]) -> Recording:
    """Return the main conversation, those of its subagents, and the number of omitted events.

    Omitted in each are the events of other agents, and events that are not messages. Raises
    InvalidHistory, naming the line, for an event that is not valid.
    """
    session = _Session()
    subagents: dict[str, _Session] = {}
    for record in records:
        session.add(record)
        agent_id = record.fields.get("agentId")
        if agent_id and is_event(record.fields):
            subagents.setdefault(str(agent_id), _Session(str(agent_id))).add(record)
    recordings = [subagent.recording() for subagent in subagents.values()]
    return replace(session.recording(), subagents=recordings)


class _Session:
    """The conversation of one agent in the events that were added so far.

    *agent_id* is the id of a subagent, "" for the main agent.
    """

    def __init__(self, agent_id: str = "") -> None:
        self._agent_id = agent_id
        self._agent = agent_id
        self._conversation = RecordedConversation()
        self._system: str | None = None
        self._model = ""
        self._usages: dict[str, JsonObject | None] = {}  # by the id of the API call
        self._omitted_counts: Counter[str] = Counter()
        self._unknown_counts: Counter[str] = Counter()

    def add(self, record: FileRecord) -> None:
        """Add the event in *record*. Raises InvalidHistory if it is not valid."""
        fields = record.fields
        if not is_event(fields):
            self._unknown_counts[str(kind(fields) or "no event")] += 1
            return
        if str(fields.get("agentId") or "") != self._agent_id:
            self._omitted_counts["of a subagent"] += 1
            return
        data = valid_object(fields["data"], record.place, "data", content=str, toolRequests=list)
        time = fields.get("timestamp")
        match kind(fields):
            case "user.message":
                # The text as sent, with the context that the program adds.
                text = data.get("transformedContent") or data.get("content")
                self._conversation.add_user(_texts(text), time)
                return
            case "assistant.message":
                self._model = str(data.get("model") or self._model)
                reply_usage = self._usages.pop(str(data.get("apiCallId")), None)
                content = list(_reply(data, record.place))
                if self._conversation.add_reply(content, time, reply_usage, self._model):
                    return
            case "tool.execution_complete":
                self._conversation.add_result(_result(data), time)
                return
            case "system.message" if self._system is None:
                self._system = data.get("content")
                return
            case "subagent.started":
                self._agent = str(data.get("agentName") or self._agent)
            case "session.usage_record":
                reported = field(data, "usage")
                self._usages[str(field(reported, "apiCallId"))] = _usage(reported)
        self._omitted_counts["not a message"] += 1

    def recording(self) -> Recording:
        """Return the conversation in the events that were added."""
        request = {"model": self._model, "system": self._system}
        return Recording(
            self._conversation.entries,
            request,
            self._omitted_counts,
            self._unknown_counts,
            agent=self._agent,
        )


def _texts(text: object) -> list[JsonDict]:
    return [text_block(text)] if has_text(text) else []


def _reply(data: JsonObject, place: str) -> Iterator[JsonDict]:
    """Yield the blocks of a reply. Raises InvalidHistory, naming the *place*, if one is invalid."""
    thought = data.get("reasoningText")
    if has_text(thought):
        yield thinking_block(thought, data.get("reasoningOpaque"))
    yield from _texts(data.get("content"))
    for request in data.get("toolRequests") or ():
        call = valid_object(request, place, "a tool call", toolCallId=str, name=str)
        arguments = arguments_object(call.get("arguments"))
        yield use_block(call.get("toolCallId") or "", call.get("name") or "unknown", arguments)


def _result(data: JsonObject) -> JsonDict:
    """Return the result in *data*, of a call that has ended."""
    call_id = str(data.get("toolCallId") or "")
    if data.get("success") is False:
        error = field(data.get("error"), "message") or field(data.get("result"), "content")
        return result_block(call_id, str(error or "")) | {"is_error": True}
    content = field(data.get("result"), "content")
    if content is None or isinstance(content, str):
        return result_block(call_id, content or "")
    return result_block(call_id, [opaque_block(content)])


def _usage(reported: object) -> JsonObject | None:
    """Return the usage of a call; its input tokens include the cached ones."""
    return usage(
        field(reported, "inputTokens"),
        read=field(reported, "cacheReadTokens"),
        written=field(reported, "cacheWriteTokens"),
        output=field(reported, "outputTokens"),
    )
