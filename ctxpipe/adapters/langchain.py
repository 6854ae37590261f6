"""Middleware for LangChain's agents, and so for LangGraph and deepagents.

``create_agent(model, tools, middleware=[ctxpipe_middleware(pipeline)])``
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import sync
from ..messages import kind, without_surrogates
from ..refusals import as_refusal
from ..wire.codec import Item, Reading, Side
from ..wire.conversations import SessionName
from ..wire.shaping import Shaped, Shaper
from ..wire.usage import usage
from ..wire.values import (
    arguments_json,
    arguments_object,
    block_text,
    image_block,
    opaque_block,
    result_text,
    says,
    text_block,
)
from ..wire.versions import Versions, ensure_hook, load

VERSIONS = Versions("langchain", "langchain", "1.3.0", "1.4.7")
_hooks = load("langchain.agents.middleware", VERSIONS)
for _name in ("wrap_model_call", "awrap_model_call"):
    _hook = getattr(getattr(_hooks, "AgentMiddleware", None), _name, None)
    ensure_hook(VERSIONS, _hook, ["request", "handler"])
ensure_hook(VERSIONS, getattr(_hooks, "ModelRequest", None), ["messages", "system_message"])

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse  # noqa: E402
from langchain_core.messages import (  # noqa: E402
    AIMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

if TYPE_CHECKING:
    from ..pipeline import ContextPipeline
    from ..storage import JournalStorage

__all__ = ["MessageCodec", "ctxpipe_middleware"]

EMPTY = "[This message is empty.]"
CALLS = frozenset(
    {"tool_use", "tool_call", "function_call", "input_json_delta", "invalid_tool_call"}
)
"""Content blocks of calls that a message has under ``tool_calls``, too."""
OURS = frozenset({"thinking", "redacted_thinking", "document"})
"""Content blocks in the form of the Messages API."""

Request: TypeAlias = "ModelRequest[Any]"
Reply: TypeAlias = Any
"""A ModelResponse, an ExtendedModelResponse or an AIMessage."""


def ctxpipe_middleware(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
) -> AgentMiddleware[Any, Any, Any]:
    """A middleware for ``create_agent`` that has the model called with the context.

    The agent's state, and a checkpointer, keep every message as it was. It works for ``invoke`` and
    ``ainvoke``, streams, and every model; it learns from ``usage_metadata``, and after "too long",
    by whatever error of the model's package, calls the model once more with a context shortened by
    force. Put it last, so that it is the innermost: it must see what is sent. An error of ours is
    logged, and the model is called with the messages as they are.

    *session_id* names the conversation, or finds its name in the ``ModelRequest``; without it the
    name is that of `conversation`, or the thread's. Conversations of one name, such as sub-agents
    in a thread, are distinguished by their first message; *journal* follows the one that came
    first.

    Raises SettingsError for an invalid setting, and, when this module is imported,
    MountUnavailable without a LangChain of the expected form.
    """
    shaper = Shaper(pipeline, MessageCodec(), session_id=session_id, journal=journal)
    return _Middleware(shaper)


class _Middleware(AgentMiddleware[Any, Any, Any]):
    def __init__(self, shaper: Shaper) -> None:
        super().__init__()
        self._shaper = shaper
        self._tools: tuple[Sequence[object], list[object]] = ((), [])

    @property
    def name(self) -> str:
        """What LangChain calls it."""
        return "ctxpipe"

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[ModelResponse[Any]]]
    ) -> Reply:
        """Call the model with the context."""
        shaped = await self._shape(request)
        if shaped is None:
            return await handler(request)
        try:
            reply = await handler(_with_items(request, shaped))
        except Exception as error:
            shorter = await self._shaper.recover(shaped, as_refusal(error))
            if shorter is None:
                raise
            shaped = shorter
            reply = await handler(_with_items(request, shaped))
        self._shaper.observe(shaped, _usage(reply))
        return reply

    def wrap_model_call(
        self, request: Request, handler: Callable[[Request], ModelResponse[Any]]
    ) -> Reply:
        """The same for synchronous callers."""
        shaped = sync.wait_for(self._shape(request))
        if shaped is None:
            return handler(request)
        try:
            reply = handler(_with_items(request, shaped))
        except Exception as error:
            shorter = sync.wait_for(self._shaper.recover(shaped, as_refusal(error)))
            if shorter is None:
                raise
            shaped = shorter
            reply = handler(_with_items(request, shaped))
        sync.wait_for(self._observe(shaped, reply))
        return reply

    async def _observe(self, shaped: Shaped, reply: Reply) -> None:
        self._shaper.observe(shaped, _usage(reply))

    async def _shape(self, request: Request) -> Shaped | None:
        system = request.system_message
        return await self._shaper.shape(
            request.messages,
            request=request,
            found=tuple(_thread(request)),
            system=None if system is None else list(_content_blocks(system.content)),
            tools=self._descriptions(request.tools),
            model=_model_name(request.model),
            options={"thinking": getattr(request.model, "thinking", None)},
        )

    def _descriptions(self, tools: Sequence[object]) -> list[object]:
        """What the model is told of *tools*, for counting; made once for the same tools."""
        known, descriptions = self._tools
        if len(known) != len(tools) or any(a is not b for a, b in zip(known, tools, strict=True)):
            descriptions = [_description(tool) for tool in tools]
            self._tools = (list(tools), descriptions)
        return descriptions


# Requests and replies -----------------------------------------------------------------------------


def _with_items(request: Request, shaped: Shaped) -> Request:
    """*request* with the messages of *shaped*; the same one where nothing has changed."""
    changes: dict[str, Any] = {}
    if shaped.is_changed:
        changes["messages"] = shaped.items
    options = shaped.result.request_options
    if options and type(request.model).__module__.startswith("langchain_anthropic"):
        changes["model_settings"] = {**request.model_settings, **options}
    return request.override(**changes) if changes else request


def _thread(request: Request) -> Iterator[object]:
    """The name of the thread, where LangGraph keeps it."""
    info = getattr(request.runtime, "execution_info", None)
    yield getattr(info, "thread_id", None)
    try:
        from langgraph.config import get_config

        yield get_config().get("configurable", {}).get("thread_id")
    except (ImportError, RuntimeError):  # outside of a graph
        return


def _model_name(model: object) -> str | None:
    for name in ("model_name", "model"):
        value = getattr(model, name, None)
        if isinstance(value, str):
            return value
    return None


def _description(tool: object) -> object:
    schema = getattr(tool, "tool_call_schema", None)
    if isinstance(tool, Mapping) or schema is None:
        return tool
    parameters = schema if isinstance(schema, dict) else schema.model_json_schema()
    description = getattr(tool, "description", "")
    return {"name": getattr(tool, "name", ""), "description": description, "parameters": parameters}


def _usage(reply: Reply) -> dict[str, int] | None:
    response = getattr(reply, "model_response", reply)
    for message in getattr(response, "result", None) or [response]:
        billed = getattr(message, "usage_metadata", None)
        if billed:
            details = billed.get("input_token_details") or {}
            written = [
                details.get(name) or 0
                for name in (
                    "cache_creation",
                    "ephemeral_5m_input_tokens",
                    "ephemeral_1h_input_tokens",
                )
            ]
            return usage(
                billed.get("input_tokens"),
                read=details.get("cache_read"),
                written=sum(written),
                output=billed.get("output_tokens"),
            )
    return None


# Messages -----------------------------------------------------------------------------------------


class MessageCodec:
    """LangChain's messages."""

    def frozen(self, items: Sequence[Item], start: int) -> int:  # noqa: ARG002
        """None: a graph's state is the caller's."""
        return 0

    def read(self, item: Item) -> Reading:
        """*item* as blocks."""
        if isinstance(item, ToolMessage):
            return Reading("result", [_result_block(item)])
        if isinstance(item, AIMessage):
            blocks = [*_content_blocks(item.content), *_call_blocks(item)]
            return Reading("assistant", blocks or [text_block(EMPTY)])
        side: Side = "system" if isinstance(item, SystemMessage) else "user"
        if isinstance(item, BaseMessage):
            return Reading(side, list(_content_blocks(item.content)) or [text_block(EMPTY)])
        return Reading(side, [opaque_block(item)])

    def rebuild(self, item: Item, blocks: Sequence[Mapping[str, Any]]) -> Item:
        """A copy of *item* with the same id, artifact and metadata that says *blocks*."""
        if isinstance(item, ToolMessage):
            content = _rebuild_result(item.content, blocks[0].get("content"))
            return item.model_copy(update={"content": content})
        if not isinstance(item, AIMessage):
            return item.model_copy(update={"content": _rebuild_content(item.content, blocks)})
        uses = {block["id"]: block for block in blocks if kind(block) == "tool_use"}
        spoken = [block for block in blocks if kind(block) != "tool_use"]
        calls: list[dict[str, Any]] = []
        for call in item.tool_calls:
            use = uses.get(call["id"])
            if use is not None:
                calls.append({**call, "args": dict(use["input"])})
        broken = [call for call in item.invalid_tool_calls if call["id"] in uses]
        others = {
            key: value
            for key, value in item.additional_kwargs.items()
            if key not in ("tool_calls", "function_call")
        }
        changes = {
            "content": _rebuild_reply(item.content, spoken, uses),
            "tool_calls": calls,
            "invalid_tool_calls": broken,
            "additional_kwargs": others,
        }
        return item.model_copy(update=changes)

    def new(self, role: str, blocks: Sequence[Mapping[str, Any]]) -> list[Item]:
        """Messages that say *blocks*."""
        items: list[Item] = []
        for block in blocks:
            if kind(block) == "tool_result":
                content = result_text(block.get("content"))
                items.append(ToolMessage(content, tool_call_id=block["tool_use_id"]))
        uses = [block for block in blocks if kind(block) == "tool_use"]
        spoken = [block for block in blocks if kind(block) not in ("tool_use", "tool_result")]
        if not (uses or spoken):
            return items
        content = _rebuild_content("", spoken)
        if role == "assistant":
            calls = [
                {"id": use["id"], "name": use["name"], "args": dict(use["input"])} for use in uses
            ]
            return [*items, AIMessage(content, tool_calls=calls)]
        made = SystemMessage if role == "system" else HumanMessage
        return [*items, made(content)]

    def repair(
        self,
        items: list[Item],
        sources: Sequence[int | None],  # noqa: ARG002
        given: Sequence[Item],
    ) -> list[Item]:
        """*items*, without a result whose call has left, or a call whose result has."""
        lost_calls = _calls(given) - _calls(items)
        lost_results = _results(given) - _results(items)
        if not lost_calls & _results(items) and not lost_results & _calls(items):
            return items
        kept: list[Item] = []
        for item in items:
            if isinstance(item, ToolMessage):
                if item.tool_call_id not in lost_calls:
                    kept.append(item)
                continue
            reading = self.read(item)
            left = [block for block in reading.blocks if block.get("id") not in lost_results]
            if len(left) == len(reading.blocks):
                kept.append(item)
            elif left:
                kept.append(self.rebuild(item, left))
        return kept


def _calls(items: Sequence[Item]) -> set[object]:
    found: set[object] = set()
    for item in items:
        if isinstance(item, AIMessage):
            found.update(call["id"] for call in [*item.tool_calls, *item.invalid_tool_calls])
    return found


def _results(items: Sequence[Item]) -> set[object]:
    return {item.tool_call_id for item in items if isinstance(item, ToolMessage)}


def _content_blocks(content: object) -> Iterator[dict[str, Any]]:
    """The blocks of a message's content, without those of calls."""
    if isinstance(content, str):
        if content:
            yield _text(content, content)
        return
    for part in content if isinstance(content, list | tuple) else ():
        if kind(part) not in CALLS:
            yield _part_block(part)


def _text(text: object, part: object) -> dict[str, Any]:
    if isinstance(text, str) and says(text):
        return text_block(text)
    return opaque_block({"type": "text", "text": part} if isinstance(part, str) else part)


def _part_block(part: Any) -> dict[str, Any]:
    if isinstance(part, str):
        return _text(part, part)
    name = kind(part)
    if name == "text":
        return _text(part.get("text"), part)
    if name in OURS:
        return _as_ours(part)
    if name == "reasoning":
        return _thinking_block(part)
    image = None
    if name == "image_url":
        url = part.get("image_url")
        image = image_block(url.get("url") if isinstance(url, Mapping) else url)
    elif name == "image" and isinstance(part.get("source"), Mapping):
        image = {"type": "image", "source": dict(part["source"])}
    elif name == "image" and part.get("base64"):
        mime = part.get("mime_type", "image/png")
        image = image_block(f"data:{mime};base64,{part['base64']}")
    elif name == "image":
        image = image_block(part.get("url"))
    return image or opaque_block(part)


def _as_ours(part: Mapping[str, Any]) -> dict[str, Any]:
    """A block of the Messages API, without what LangChain adds; opaque where it is none."""
    block = {key: value for key, value in part.items() if key not in ("index", "cache_control")}
    proof = {"thinking": "signature", "redacted_thinking": "data", "document": "source"}
    if not block.get(proof[block["type"]]):
        return opaque_block(part)
    return block


def _thinking_block(part: Mapping[str, Any]) -> dict[str, Any]:
    """Reasoning in LangChain's own form, or in that of the responses API."""
    extras = part.get("extras") or {}
    proof = extras.get("signature") or part.get("encrypted_content") or part.get("id")
    words = part.get("reasoning")
    if not words:
        words = "\n".join(str(entry.get("text")) for entry in part.get("summary") or ())
    if not words:
        return {"type": "redacted_thinking", "data": str(proof or "unsigned")}
    thought = without_surrogates(str(words))
    return {"type": "thinking", "thinking": thought, "signature": str(proof or "unsigned")}


def _call_blocks(item: AIMessage) -> Iterator[dict[str, Any]]:
    for call in item.tool_calls:
        arguments = arguments_object(call["args"])
        yield {"type": "tool_use", "id": call["id"], "name": call["name"], "input": arguments}
    for broken in item.invalid_tool_calls:
        name = broken["name"] or ""
        arguments = arguments_object(broken["args"])
        yield {"type": "tool_use", "id": broken["id"], "name": name, "input": arguments}


def _result_block(item: ToolMessage) -> dict[str, Any]:
    content: Any = item.content
    if isinstance(content, str):
        content = without_surrogates(content)
    else:
        content = [_part_block(part) for part in content]
    block = {"type": "tool_result", "tool_use_id": item.tool_call_id, "content": content}
    is_text = isinstance(content, str) or all(kind(part) == "text" for part in content)
    if item.status == "error" and content and is_text:
        block["is_error"] = True
    return block


# Writing ------------------------------------------------------------------------------------------


def _rebuild_result(old: object, content: object) -> Any:
    if isinstance(content, str) or content is None:
        blocks = [text_block(content)] if content else []
    else:
        blocks = list(content)  # type: ignore[call-overload]  # an iterable of blocks
    return _rebuild_content(old, blocks)


def _rebuild_content(old: object, blocks: Sequence[Mapping[str, Any]]) -> Any:
    """Content that says *blocks*, in the form of the *old* one, whose parts stay."""
    if not isinstance(old, list) and all(kind(block) == "text" for block in blocks):
        return "\n".join(map(block_text, blocks))
    left = [(part, _part_block(part)) for part in old] if isinstance(old, list) else []
    content: list[Any] = []
    for block in blocks:
        place = next((place for place, pair in enumerate(left) if pair[1] == block), None)
        if place is not None:
            content.append(left.pop(place)[0])
        elif kind(block) in ("image", "document", *OURS):
            content.append(dict(block))
        else:
            content.append({"type": "text", "text": block_text(block)})
    return content


def _rebuild_reply(
    old: object, spoken: Sequence[Mapping[str, Any]], uses: Mapping[object, Mapping[str, Any]]
) -> Any:
    """The content of a reply that says *spoken*, with only the calls *uses* in it."""
    if not isinstance(old, list):
        return _rebuild_content(old, spoken)
    waiting = list(spoken)
    content: list[Any] = []
    for part in old:
        if kind(part) in CALLS:
            use = uses.get(part.get("call_id") or part.get("id"))
            if use is not None:
                content.append(_with_input(part, use["input"]))
        elif _part_block(part) in waiting:
            waiting.remove(_part_block(part))
            content.append(part)
    return [*content, *_rebuild_content([], waiting)]


def _with_input(part: Mapping[str, Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """A content block of a call with *arguments*, without an id by which it is stored."""
    key = next((name for name in ("input", "args", "arguments") if name in part), "input")
    old = part.get(key)
    if arguments_object(old) == arguments:
        return part
    plain = {name: value for name, value in part.items() if name not in ("partial_json", "index")}
    if "call_id" in plain:
        plain.pop("id", None)
    plain[key] = arguments_json(arguments) if isinstance(old, str) else dict(arguments)
    return plain
