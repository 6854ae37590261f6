"""Whose messages of another API or framework are, so that an error can name the owner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .bulk import MAPPINGS

SEE = (
    "ctxpipe takes the messages of Anthropic's Messages API;"
    " see 'Messages of another API' in the docs"
)

_OPENAI_ROLES = frozenset({"tool", "function", "developer"})
_OPENAI_KEYS = ("tool_calls", "function_call", "tool_call_id")
_OPENAI_ITEMS = frozenset(
    {
        "code_interpreter_call",
        "computer_call",
        "computer_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "file_search_call",
        "function_call",
        "function_call_output",
        "image_generation_call",
        "item_reference",
        "local_shell_call",
        "local_shell_call_output",
        "mcp_approval_request",
        "mcp_call",
        "mcp_list_tools",
        "reasoning",
        "web_search_call",
    }
)
_OPENAI_BLOCKS = frozenset(
    {
        "input_text",
        "output_text",
        "input_image",
        "input_file",
        "image_url",
        "input_audio",
        "refusal",
    }
)
_FRAMEWORKS = {
    "langchain": "LangChain's",
    "langchain_core": "LangChain's",
    "langgraph": "LangChain's",
    "pydantic_ai": "pydantic-ai's",
    "llama_index": "LlamaIndex's",
    "openai": "OpenAI's",
    "agents": "OpenAI's",
    "litellm": "OpenAI's",
    "google": "Google's",
    "vertexai": "Google's",
    "mistralai": "Mistral's",
    "cohere": "Cohere's",
    "autogen_core": "AutoGen's",
    "haystack": "Haystack's",
    "semantic_kernel": "Semantic Kernel's",
}


def history_hint(history: object) -> str:
    """What to hand in instead of *history*, which is no list; "" when nothing better is known."""
    if history is None or isinstance(history, str | bytes):
        return '; give [{"role": "user", "content": "…"}]'
    if isinstance(history, MAPPINGS):
        if "messages" in history:
            return "; give its messages"
        return "; give a list of such messages"
    if hasattr(history, "messages") and hasattr(history, "reports"):
        return "; give the history, or result.messages"
    if isinstance(history, Iterable):
        return "; give list(…) of it"
    return ""


def message_hint(message: object) -> str:
    """Whose form *message* has, and where to read on; "" when it may be Anthropic's."""
    owner = _owner(message)
    if not owner:
        return ""
    return f"looks like {owner} form; {SEE}"


def _owner(message: object) -> str:
    if isinstance(message, MAPPINGS):
        return _mapping_owner(message)
    package = type(message).__module__.partition(".")[0]
    if package in _FRAMEWORKS:
        return _FRAMEWORKS[package]
    if hasattr(message, "tool_calls") or hasattr(message, "tool_call_id"):
        return "OpenAI's or LangChain's"
    if hasattr(message, "parts"):
        return "another framework's"
    return ""


def _mapping_owner(message: Mapping[object, object]) -> str:
    kind = message.get("type")
    role = message.get("role")
    if isinstance(role, str) and role in _OPENAI_ROLES:
        return "OpenAI's"
    has_openai_key = any(message.get(key) for key in _OPENAI_KEYS)
    if has_openai_key or (isinstance(kind, str) and kind in _OPENAI_ITEMS):
        return "OpenAI's"
    if "role" not in message and (kind in ("human", "ai") or "lc" in message):
        return "LangChain's"
    if "content" not in message and "parts" in message:
        if role in ("user", "model"):
            return "Google's"
        return "pydantic-ai's"
    return _content_owner(message.get("content"))


def _content_owner(content: object) -> str:
    if not isinstance(content, list | tuple):
        return ""
    for block in content:
        if not isinstance(block, MAPPINGS):
            continue
        kind = block.get("type")
        if isinstance(kind, str) and kind in _OPENAI_BLOCKS:
            return "OpenAI's"
        if kind is None and ("toolUse" in block or "toolResult" in block):
            return "Bedrock Converse's"
    return ""
