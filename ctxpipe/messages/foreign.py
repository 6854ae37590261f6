"""Messages of other APIs and frameworks: whose they are, so that a refusal can say so."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .bulk import MAPPINGS

__all__ = ["history_hint", "message_hint"]

SEE = "ctxpipe takes the messages of Anthropic's Messages API; see 'Messages of another API' in the docs"

_OPENAI_ROLES = frozenset({"tool", "function", "developer"})
_OPENAI_KEYS = ("tool_calls", "function_call", "tool_call_id")
_OPENAI_ITEMS = frozenset(
    {
        *("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"),
        *(
            "reasoning",
            "item_reference",
            "computer_call",
            "computer_call_output",
            "web_search_call",
        ),
        *("file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call"),
        *("local_shell_call", "local_shell_call_output", "mcp_list_tools", "mcp_approval_request"),
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
        return "; give its messages" if "messages" in history else "; give a list of such messages"
    if hasattr(history, "messages") and hasattr(history, "reports"):
        return "; give the history, or result.messages"
    return "; give list(…) of it" if isinstance(history, Iterable) else ""


def message_hint(message: object) -> str:
    """Whose form *message* has, and where to read on; "" when it may be Anthropic's."""
    owner = _owner(message)
    return f"looks like {owner} form; {SEE}" if owner else ""


def _owner(message: object) -> str:
    if isinstance(message, MAPPINGS):
        return _mapping_owner(message)
    package = type(message).__module__.partition(".")[0]
    if package in _FRAMEWORKS:
        return _FRAMEWORKS[package]
    if hasattr(message, "tool_calls") or hasattr(message, "tool_call_id"):
        return "OpenAI's or LangChain's"
    return "another framework's" if hasattr(message, "parts") else ""


def _mapping_owner(message: Mapping[object, object]) -> str:
    kind, role = message.get("type"), message.get("role")
    if isinstance(role, str) and role in _OPENAI_ROLES:
        return "OpenAI's"
    if any(message.get(key) for key in _OPENAI_KEYS) or (
        isinstance(kind, str) and kind in _OPENAI_ITEMS
    ):
        return "OpenAI's"
    if "role" not in message and (kind in ("human", "ai") or "lc" in message):
        return "LangChain's"
    if "content" not in message and "parts" in message:
        return "Google's" if role in ("user", "model") else "pydantic-ai's"
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
