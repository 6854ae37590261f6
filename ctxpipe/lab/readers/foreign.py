"""Recordings of other programs, which are refused by name.

Many of them have parts in a form that some reader knows. Without this table such a file would be
read as a conversation that was never sent, or be refused with advice that does not help.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..._values import JsonObject
from ...messages import field, kind


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """A format that is not read: its *name*, and *advice* about what can be read in its place.

    *recognizes* returns True for a record that only this format has.
    """

    name: str
    recognizes: Callable[[JsonObject], bool]
    advice: str = ""


MESSAGES_ADVICE = "its requests can be replayed, if you record them as messages of the API"


def foreign_format(records: Sequence[JsonObject]) -> ForeignFormat | None:
    """Return the format of another program that *records* are in, or None."""
    for foreign in FOREIGN_FORMATS:
        if any(foreign.recognizes(record) for record in records):
            return foreign
    return None


def foreign_archive(name: str) -> ForeignFormat | None:
    """Return the format of another program that the archive with this *name* is in, or None."""
    return INSPECT if name.endswith(".eval") else None


def foreign_text(text: str) -> ForeignFormat | None:
    """Return the format of another program that *text*, which is not JSON, is in, or None."""
    beginning = text.lstrip()[:2000]
    for opening, foreign in FOREIGN_TEXTS.items():
        if beginning.startswith(opening):
            return foreign
    return None


def _has(value: JsonObject, **types: type | tuple[type, ...]) -> bool:
    """Return True if *value* has each of these fields, with a value of the given type."""
    return all(isinstance(value.get(name), of_type) for name, of_type in types.items())


def _first(value: JsonObject, name: str) -> object:
    """Return the first element of the list *name* in *value*, or None."""
    values = value.get(name)
    return values[0] if isinstance(values, list) and values else None


def _is_swe_agent(value: JsonObject) -> bool:
    if _has(value, trajectory=list) and {"environment", "history", "info"} & set(value):
        return True
    step = _first(value, "trajectory")
    return isinstance(step, Mapping) and ("action" in step or "observation" in step)


def _is_trae(value: JsonObject) -> bool:
    return _has(value, llm_interactions=list) or _has(value, agent_steps=list, task=str)


def _is_kimi(value: JsonObject) -> bool:
    if value.get("role") in ("_checkpoint", "_system_prompt", "_usage"):
        return True
    if kind(value) == "metadata" and "protocol_version" in value:
        return True
    message = value.get("message")
    return isinstance(message, Mapping) and _has(dict(message), type=str, payload=Mapping)


def _is_moatless(value: JsonObject) -> bool:
    nodes = value.get("nodes") or field(value.get("root"), "children")
    node = nodes[0] if isinstance(nodes, list) and nodes else value.get("root")
    if isinstance(node, Mapping) and ("action_steps" in node or "node_id" in node):
        return True
    transition = _first(value, "transitions")
    return isinstance(transition, Mapping) and ("actions" in transition or "state" in transition)


def _is_tau(value: JsonObject) -> bool:
    if _has(value, simulations=list) or _has(value, task_id=(str, int), traj=list):
        return True
    return _has(value, task_id=(str, int), messages=list) and "reward_info" in value


def _is_langchain(value: JsonObject) -> bool:
    if "lc" in value and kind(value) == "constructor":
        return True
    if "channel_values" in value or "channel_versions" in value:
        return True
    if str(value.get("event")).startswith("on_") and "run_id" in value:
        return True
    if kind(value) in ("human", "ai") and ("content" in value or _has(value, data=Mapping)):
        return True
    inner = field(value.get("values"), "messages") or value.get("messages")
    first = inner[0] if isinstance(inner, list) and inner else None
    return isinstance(first, Mapping) and "role" not in first and _is_langchain_message(first)


def _is_langchain_message(message: Mapping[str, object]) -> bool:
    return message.get("type") in ("human", "ai", "constructor", "HumanMessage", "AIMessage")


def _is_openhands(value: JsonObject) -> bool:
    if value.get("source") not in ("agent", "environment", "user"):
        history = _first(value, "history")
        return isinstance(history, Mapping) and _is_openhands(history)
    return bool({"action", "observation"} & set(value)) or str(value.get("kind")).endswith("Event")


def _is_inspect(value: JsonObject) -> bool:
    return _has(value, eval=Mapping) and ("samples" in value or "plan" in value)


def _is_cline_display(value: JsonObject) -> bool:
    return "ts" in value and kind(value) in ("ask", "say") and str(kind(value)) in value


def _is_grok(value: JsonObject) -> bool:
    if "role" in value or "message" in value:
        return False
    name = kind(value)
    return (name == "assistant" and "content" in value) or (
        name == "tool_result" and "tool_call_id" in value
    )


def _is_qwen(value: JsonObject) -> bool:
    message = value.get("message")
    return "sessionId" in value and isinstance(field(message, "parts"), list)


def _is_goose(value: JsonObject) -> bool:
    content = value.get("content")
    parts = content if isinstance(content, list) else ()
    return any(kind(part) in ("toolRequest", "toolResponse") for part in parts)


def _is_droid(value: JsonObject) -> bool:
    return kind(value) == "session_start"


def _is_cursor(value: JsonObject) -> bool:
    return "composerId" in value or (
        value.get("role") in ("user", "assistant")
        and "content" not in value
        and isinstance(field(value.get("message"), "content"), list)
    )


def _is_chatgpt(value: JsonObject) -> bool:
    return _has(value, mapping=Mapping) and "current_node" in value


def _is_claude_ai(value: JsonObject) -> bool:
    return _has(value, chat_messages=list)


def _is_share_gpt(value: JsonObject) -> bool:
    turn = _first(value, "conversations")
    return isinstance(turn, Mapping) and "from" in turn


def _is_langsmith(value: JsonObject) -> bool:
    return "run_type" in value and "inputs" in value


def _is_langfuse(value: JsonObject) -> bool:
    return _has(value, observations=list) or ("traceId" in value and "observationId" in value)


def _is_openinference(value: JsonObject) -> bool:
    attributes = value.get("attributes")
    names = attributes if isinstance(attributes, Mapping) else value
    return any(
        str(name).startswith(("llm.input_messages.", "attributes.llm.input_messages"))
        for name in names
    )


def _is_atif(value: JsonObject) -> bool:
    return str(value.get("schema_version")).startswith("ATIF") and "steps" in value


def _is_har(value: JsonObject) -> bool:
    return isinstance(field(value.get("log"), "entries"), list)


def _is_vs_code_chat(value: JsonObject) -> bool:
    return _has(value, requests=list) and "responderUsername" in value


def _is_autogen(value: JsonObject) -> bool:
    return "models_usage" in value and "source" in value


def _is_continue(value: JsonObject) -> bool:
    turn = _first(value, "history")
    return isinstance(turn, Mapping) and "contextItems" in turn


def _is_batch(value: JsonObject) -> bool:
    return "custom_id" in value and ("body" in value or "params" in value or "result" in value)


def _is_antigravity(value: JsonObject) -> bool:
    return "cascadeId" in value or "trajectoryId" in value


INSPECT = ForeignFormat("inspect_ai log", _is_inspect)
FOREIGN_FORMATS: Sequence[ForeignFormat] = (
    ForeignFormat("SWE-agent trajectory (.traj)", _is_swe_agent),
    ForeignFormat("trae-agent trajectory", _is_trae),
    ForeignFormat("kimi-cli session", _is_kimi),
    ForeignFormat("moatless trajectory", _is_moatless),
    ForeignFormat("tau-bench result", _is_tau),
    ForeignFormat("LangChain or LangGraph state", _is_langchain),
    ForeignFormat("OpenHands trajectory", _is_openhands),
    INSPECT,
    ForeignFormat(
        "Cline display log (ui_messages.json)",
        _is_cline_display,
        "give the file api_conversation_history.json beside it",
    ),
    ForeignFormat("Grok CLI session", _is_grok),
    ForeignFormat("Qwen Code session", _is_qwen),
    ForeignFormat("goose session", _is_goose),
    ForeignFormat("Factory Droid session", _is_droid),
    ForeignFormat("Cursor session", _is_cursor),
    ForeignFormat("Antigravity session", _is_antigravity),
    ForeignFormat("ChatGPT export", _is_chatgpt),
    ForeignFormat("claude.ai export", _is_claude_ai),
    ForeignFormat("ShareGPT conversation", _is_share_gpt),
    ForeignFormat("LangSmith run", _is_langsmith),
    ForeignFormat("Langfuse export", _is_langfuse),
    ForeignFormat(
        "OpenInference trace",
        _is_openinference,
        "spans with the names of OpenTelemetry (gen_ai.input.messages) can be read",
    ),
    ForeignFormat("ATIF trajectory", _is_atif),
    ForeignFormat("HAR file", _is_har),
    ForeignFormat("VS Code chat export", _is_vs_code_chat),
    ForeignFormat("AutoGen log", _is_autogen),
    ForeignFormat("Continue session", _is_continue),
    ForeignFormat("batch file", _is_batch),
)
"""Formats of other programs, in the order in which they are tried."""

AIDER = ForeignFormat("aider chat history", lambda _value: False)
FOREIGN_TEXTS: Mapping[str, ForeignFormat] = {
    "# aider chat started at": AIDER,
    "TO LLM ": AIDER,
    "LLM RESPONSE ": AIDER,
}
"""Formats of other programs that are not JSON, by the beginning of their text."""
