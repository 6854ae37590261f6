"""Messages of the Messages API as LangChain's, and back by its own Anthropic adapter.

Runs where LangChain is.
"""

from __future__ import annotations

from typing import Any

import fake_model
from langchain_anthropic.chat_models import _format_messages
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult


class FakeChat(BaseChatModel):
    """Answers with the fake summary; counts as an Anthropic model, so that its defaults hold."""

    profile: Any = None

    @property
    def _llm_type(self) -> str:
        return "anthropic-chat"

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        prompt = "\n".join(message.text for message in messages)
        return ChatResult(
            generations=[ChatGeneration(message=AIMessage(fake_model.summary(prompt)))]
        )


def chatted(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    """Return the messages as `ChatOpenAI` sends them to chat completions."""
    from langchain_openai import ChatOpenAI

    model = ChatOpenAI(model="gpt-4.1", api_key="none", use_responses_api=False)
    return model._get_request_payload(messages)["messages"]


def converted(messages: list[dict[str, Any]]) -> list[BaseMessage]:
    return [made for message in messages for made in _converted(message)]


def _converted(message: dict[str, Any]) -> list[BaseMessage]:
    content = message["content"]
    if message["role"] == "system":
        return [SystemMessage(content)]
    if message["role"] == "assistant":
        return [_answer(content, message.get("usage"))]
    if isinstance(content, str):
        return [HumanMessage(content)]
    results = [
        ToolMessage(
            block.get("content", ""),
            tool_call_id=block["tool_use_id"],
            status="error" if block.get("is_error") else "success",
        )
        for block in content
        if block["type"] == "tool_result"
    ]
    rest = [block for block in content if block["type"] != "tool_result"]
    return [*results, *([HumanMessage(rest)] if rest else [])]


def _answer(content: Any, usage: dict[str, int] | None) -> AIMessage:
    """A reply as the adapter makes it.

    The API's blocks, and the calls once more in a field of their own.
    """
    blocks = content if isinstance(content, list) else []
    calls = [
        {"type": "tool_call", "id": block["id"], "name": block["name"], "args": block["input"]}
        for block in blocks
        if block["type"] == "tool_use"
    ]
    metadata = None
    if usage:
        total = usage["input_tokens"] + usage["output_tokens"]
        metadata = {**usage, "total_tokens": total}
    return AIMessage(
        content,
        tool_calls=calls,
        usage_metadata=metadata,
        response_metadata={"model_provider": "anthropic"},
    )


def head(system: Any, tools: Any) -> dict[str, Any]:
    """The arguments of a `ModelRequest` for system prompt and tools of the Messages API."""
    return {"system_message": SystemMessage(system) if system else None, "tools": tools or []}


def wired(messages: list[BaseMessage]) -> list[dict[str, Any]]:
    """Return the messages of the adapter's request; a system prompt comes first, as a message."""
    system, rest = _format_messages(messages, model=None)
    return [*([{"role": "system", "content": system}] if system else []), *rest]


def held(messages: list[BaseMessage]) -> list[str]:
    """Every text that *messages* hold, calls' inputs included."""
    return [f"{message.content}\n{getattr(message, 'tool_calls', '')}" for message in messages]
