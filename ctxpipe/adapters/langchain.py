"""Middleware for LangChain's agents, and so for LangGraph and deepagents.

``create_agent(model, tools, middleware=[ctxpipe_middleware(pipeline)])``
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from anyio import to_thread

from .. import sync
from .._values import JsonDict, JsonObject
from ..messages import kind
from ..pipeline import ContextPipeline
from ..providers.refusals import as_refusal
from ..storage import JournalStorage
from ..summarizers import AgentAnswer, AgentModel, SummaryRefused
from ..wire.codec import SYSTEM_ROLES, Codec, Item, Reading, Side
from ..wire.conversations import SessionName
from ..wire.exchange import Adapter, Exchange
from ..wire.translation import is_unchanged
from ..wire.usage import usage
from ..wire.values import (
    arguments_json,
    arguments_object,
    block_text,
    client_block,
    document_block,
    image_block,
    image_by_id,
    join_texts,
    opaque_block,
    read_result,
    result_blocks,
    result_text,
    sort_blocks,
    take_part,
    text_or_opaque,
    thinking_block,
    use_block,
)
from ..wire.versions import Versions, load

VERSIONS = Versions("langchain", "langchain", "1.3.0", "1.4.7")
load(
    "langchain.agents.middleware",
    VERSIONS,
    {
        "AgentMiddleware.wrap_model_call": ["request", "handler"],
        "AgentMiddleware.awrap_model_call": ["request", "handler"],
        "ModelRequest": ["messages", "system_message"],
    },
)

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse  # noqa: E402
from langchain_core.language_models import BaseChatModel  # noqa: E402
from langchain_core.messages import (  # noqa: E402
    AIMessage,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

__all__ = ["LangChainCodec", "ctxpipe_middleware"]

CALLS = frozenset(
    {"tool_use", "tool_call", "function_call", "input_json_delta", "invalid_tool_call"}
)
"""Content blocks of calls that a message has under ``tool_calls``, too."""
PROOFS = {"thinking": "signature", "redacted_thinking": "data", "document": "source"}
"""The field without which a content block of the Messages API is none."""
OURS = frozenset(PROOFS)
"""Content blocks in the form of the Messages API."""
CLIENT_UNKNOWN = frozenset({"reasoning", "redacted_thinking", "thinking"})
"""Content blocks that only a model writes: in a message of the client's they mean nothing."""
WRITTEN = ("cache_creation", "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
"""What LangChain calls the tokens that are written to the cache."""

Request: TypeAlias = "ModelRequest[Any]"
ReadPart: TypeAlias = Callable[[Any], JsonDict]
Reply: TypeAlias = Any
"""A ModelResponse, an ExtendedModelResponse or an AIMessage."""


def ctxpipe_middleware(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    summary_model: str | BaseChatModel | None = None,
) -> AgentMiddleware[Any, Any, Any]:
    """A middleware for ``create_agent`` that has the model called with the context.

    The agent's state, and a checkpointer, keep every message as it was. It works for ``invoke`` and
    ``ainvoke``, streams, and every model; it learns from ``usage_metadata``, and after "too long",
    by whatever error of the model's package, calls the model once more with a context shortened by
    force. Put it last, so that it is the innermost: it must see what is sent. An error of ours is
    logged, and the model is called with the messages as they are.

    *session_id* names the conversation, or finds its name in the ``ModelRequest``; without it the
    name is that of `conversation`, or the thread's. Conversations of one name, such as sub-agents
    in a thread, or of none, are told apart by their histories; each has a *journal* of its own.

    Summaries are written by the agent's own model, with its client and its credentials.
    *summary_model* is another model for them, or the name of another one of the same provider;
    without it the name is SUMMARY_MODEL where the environment sets it.

    Raises SettingsError for an invalid setting, and, when this module is imported,
    AdapterUnavailable without a LangChain of the expected form.
    """
    chosen = summary_model if isinstance(summary_model, BaseChatModel) else None
    name = None if chosen is not None else summary_model
    return _AgentMiddleware(Adapter(pipeline, session_id, journal, summary_model=name), chosen)


class _AgentMiddleware(AgentMiddleware[Any, Any, Any]):
    def __init__(self, adapter: Adapter, summary_model: BaseChatModel | None) -> None:
        super().__init__()
        self._adapter = adapter
        self._summary_model = summary_model
        self._tools: tuple[Sequence[object], list[object]] = ((), [])

    @property
    def name(self) -> str:
        """What LangChain calls it."""
        return "ctxpipe"

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[ModelResponse[Any]]]
    ) -> Reply:
        """Call the model with the context."""
        exchange = await self._begin(request, is_blocking=False)
        if exchange is None:
            return await handler(request)
        try:
            reply = await handler(_to_send(request, exchange))
        except Exception as error:
            if not await exchange.shorten(as_refusal(error)):
                raise
            reply = await handler(_to_send(request, exchange))
        exchange.calibrate(_usage(reply))
        return reply

    def wrap_model_call(
        self, request: Request, handler: Callable[[Request], ModelResponse[Any]]
    ) -> Reply:
        """The same for synchronous callers."""
        exchange = sync.wait_for(self._begin(request, is_blocking=True))
        if exchange is None:
            return handler(request)
        try:
            reply = handler(_to_send(request, exchange))
        except Exception as error:
            if not sync.wait_for(exchange.shorten(as_refusal(error))):
                raise
            reply = handler(_to_send(request, exchange))
        sync.call_on_loop(exchange.calibrate, _usage(reply))
        return reply

    async def _begin(self, request: Request, *, is_blocking: bool) -> Exchange | None:
        system = None
        if request.system_message is not None:
            system = _content_blocks(request.system_message.content, _part_block)
        arguments = {
            "system": system,
            "tools": self._descriptions(request.tools),
            "request": {
                "thinking": getattr(request.model, "thinking", None),
                "model": _model_name(request.model),
            },
        }
        return await self._adapter.begin(
            CODEC,
            request.messages,
            arguments,
            request=request,
            names=_thread(request),
            agent_model=self._lent(request.model, is_blocking=is_blocking),
        )

    def _lent(self, agents: BaseChatModel, *, is_blocking: bool) -> LangChainModel:
        """The model for summaries that was chosen, or else the agent's own."""
        chosen = self._summary_model
        if chosen is None:
            name, summary_model = _model_name(agents), self._adapter.summary_model
        else:
            name = summary_model = _model_name(chosen) or type(chosen).__name__
        return LangChainModel(
            model=chosen or agents,
            is_blocking=is_blocking,
            name=name,
            summary_model=summary_model,
            api="anthropic" if "anthropic" in str(getattr(agents, "_llm_type", "")) else "",
        )

    def _descriptions(self, tools: Sequence[object]) -> list[object]:
        """What the model is told of *tools*, for counting; made once for the same tools."""
        known, descriptions = self._tools
        if is_unchanged(tools, known):
            return descriptions
        descriptions = [_description(tool) for tool in tools]
        self._tools = (list(tools), descriptions)
        return descriptions


# The agent's own model ----------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LangChainModel(AgentModel):
    """A chat *model* of LangChain, that of the agent or one that was chosen for summaries.

    With *is_blocking* the agent was called synchronously, and its asynchronous client may belong to
    another event loop.
    """

    model: BaseChatModel = field(repr=False)
    is_blocking: bool = False

    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Ask it, outside of the agent's graph: the answer is no part of what the agent streams."""
        chosen = self.model
        if model is not None and model != self.name:
            chosen = _with_name(chosen, model)
        chosen = _with_room(chosen, max_tokens)
        messages = [HumanMessage(prompt)]
        if self.is_blocking:
            invoke = partial(chosen.invoke, messages, UNSEEN)
            reply = await to_thread.run_sync(invoke, abandon_on_cancel=True)
        else:
            reply = await chosen.ainvoke(messages, UNSEEN)
        details = reply.response_metadata
        reasons = [details.get(name) for name in ("finish_reason", "stop_reason")]
        reasons.append((details.get("incomplete_details") or {}).get("reason"))
        reason = next((reason for reason in reasons if isinstance(reason, str)), None)
        return AgentAnswer(str(reply.text), reason, _usage(reply))


UNSEEN: Any = {"tags": ["nostream"], "run_name": "ctxpipe summary"}
"""The settings of a call whose answer LangGraph keeps out of the agent's stream of messages."""


def _with_name(model: BaseChatModel, name: str) -> BaseChatModel:
    """A copy of *model*, with its client, that asks the model *name*. Raises SummaryRefused."""
    for key in ("model_name", "model"):
        if key in type(model).model_fields:
            return model.model_copy(update={key: name})
    raise SummaryRefused(
        f"{type(model).__name__} cannot be asked for another model by its name;"
        " give summary_model= a model of LangChain"
    )


def _with_room(model: BaseChatModel, max_tokens: int) -> BaseChatModel:
    """*model*; a copy with more room where its own limit is too low for an answer."""
    thinking = getattr(model, "thinking", None)
    needed = max_tokens
    if isinstance(thinking, Mapping):
        needed += thinking.get("budget_tokens") or 0
    for key in ("max_tokens", "max_output_tokens"):
        limit = getattr(model, key, None) if key in type(model).model_fields else None
        if limit is not None and limit < needed:
            return model.model_copy(update={key: needed})
    return model


# Requests and replies -----------------------------------------------------------------------------


def _to_send(request: Request, exchange: Exchange) -> Request:
    """*request* with the context; the same one where nothing has changed."""
    changes: JsonDict = {}
    if exchange.is_changed:
        changes["messages"] = exchange.items
    options = exchange.result.request_options
    if options and type(request.model).__module__.startswith("langchain_anthropic"):
        changes["model_settings"] = {**request.model_settings, **options}
    if not changes:
        return request
    return request.override(**changes)


def _thread(request: Request) -> Iterator[object]:
    """The name of the thread, where LangGraph keeps it."""
    yield getattr(getattr(request.runtime, "execution_info", None), "thread_id", None)
    try:
        from langgraph.config import get_config

        yield get_config().get("configurable", {}).get("thread_id")
    except (ImportError, RuntimeError):  # outside of a graph
        return


def _model_name(model: object) -> str | None:
    names = (getattr(model, name, None) for name in ("model_name", "model"))
    return next((name for name in names if isinstance(name, str)), None)


def _description(tool: object) -> object:
    schema = getattr(tool, "tool_call_schema", None)
    if isinstance(tool, Mapping) or schema is None:
        return tool
    return {
        "name": getattr(tool, "name", ""),
        "description": getattr(tool, "description", ""),
        "parameters": schema if isinstance(schema, dict) else schema.model_json_schema(),
    }


def _usage(reply: Reply) -> dict[str, int] | None:
    response = getattr(reply, "model_response", reply)
    for message in getattr(response, "result", None) or [response]:
        if billed := getattr(message, "usage_metadata", None):
            details = billed.get("input_token_details") or {}
            return usage(
                billed.get("input_tokens"),
                read=details.get("cache_read"),
                written=sum(details.get(name) or 0 for name in WRITTEN),
                output=billed.get("output_tokens"),
            )
    return None


# Messages -----------------------------------------------------------------------------------------


class LangChainCodec(Codec):
    """LangChain's messages."""

    def read(self, item: Item) -> Reading:
        """*item* as blocks."""
        if isinstance(item, ToolMessage):
            return Reading("result", [_result_block(item)])
        side = _side_of(item)
        if side is None:
            call = getattr(item, "tool_call_id", None)
            return self.read_unknown(item, type(item).__name__, call)
        if side != "assistant":
            return Reading(side, _content_blocks(item.content, _client_part))
        blocks = _content_blocks(item.content, _part_block)
        if isinstance(item, AIMessage):
            for call in (*item.tool_calls, *item.invalid_tool_calls):
                blocks.append(use_block(call["id"], call["name"], arguments_object(call["args"])))
        return Reading("assistant", blocks)

    def is_answer(self, item: Item) -> bool:
        """Return True: a message of an unknown class that names a call answers it."""
        del item
        return True

    def answer_content(self, item: Item) -> object:
        """Return what the message says."""
        return read_result("", item.content, _client_part)["content"]

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """A copy of *item* with the same id, artifact and metadata that says *blocks*."""
        if not isinstance(item, AIMessage):
            if kind(blocks[0]) == "tool_result":
                blocks = result_blocks(blocks[0].get("content"))
            read = _part_block if _side_of(item) == "assistant" else _client_part
            content = _rebuild_content(item.content, blocks, read)
            return item.model_copy(update={"content": content})
        _, called, spoken = sort_blocks(blocks)
        uses = {block["id"]: block for block in called}
        kept = [call for call in item.tool_calls if call["id"] in uses]
        others = dict(item.additional_kwargs)
        others.pop("tool_calls", None)
        others.pop("function_call", None)
        changes = {
            "content": _rebuild_reply(item.content, spoken, uses),
            "tool_calls": [{**call, "args": dict(uses[call["id"]]["input"])} for call in kept],
            "invalid_tool_calls": [call for call in item.invalid_tool_calls if call["id"] in uses],
            "additional_kwargs": others,
        }
        return item.model_copy(update=changes)

    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Messages that say *blocks*."""
        results, uses, spoken = sort_blocks(blocks)
        items: list[Item] = []
        for block in results:
            text = result_text(block.get("content"))
            items.append(ToolMessage(text, tool_call_id=block["tool_use_id"]))
        if not uses and not spoken:
            return items
        content = _rebuild_content("", spoken, _part_block)
        if role == "assistant":
            calls = [
                {"id": block["id"], "name": block["name"], "args": dict(block["input"])}
                for block in uses
            ]
            return [*items, AIMessage(content, tool_calls=calls)]
        make = SystemMessage if role == "system" else HumanMessage
        return [*items, make(content)]


CODEC = LangChainCodec()


def _side_of(item: Item) -> Side | None:
    """Return who says *item*, which answers no call; None where its class does not tell."""
    role = item.role if isinstance(item, ChatMessage) else None
    if isinstance(item, AIMessage) or role == "assistant":
        return "assistant"
    if isinstance(item, SystemMessage) or role in SYSTEM_ROLES:
        return "system"
    if isinstance(item, HumanMessage) or role == "user":
        return "user"
    return None


def _content_blocks(content: str | list[Any], read: ReadPart) -> list[JsonDict]:
    """The blocks of a message's content, without those of calls; *read* reads a part."""
    if isinstance(content, str):
        return [read(content)] if content else []
    return [read(part) for part in content if kind(part) not in CALLS]


def _part_block(part: Any, unknown: ReadPart = opaque_block) -> JsonDict:
    """Return the block of a *part* of a content; *unknown* makes that of an unknown one."""
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    name = kind(part)
    if name == "text":
        return text_or_opaque(part.get("text"), part, unknown)
    if name in OURS:
        return _as_ours(part) or unknown(part)
    if name == "reasoning":
        return _thinking_block(part)
    image = None
    if name == "image_url":
        url = part.get("image_url")
        image = image_block(url.get("url") if isinstance(url, Mapping) else url)
    elif name == "image":
        image = _image(part)
    return image or unknown(part)


def _client_part(part: Any) -> JsonDict:
    """Return the block of a *part* of what the client says; thinking is none of that."""
    if kind(part) == "file" and (file := _file(part)):
        return file
    if kind(part) in CLIENT_UNKNOWN:
        return client_block(part)
    return _part_block(part, client_block)


def _file(part: JsonObject) -> JsonDict | None:
    """Return the document that *part* holds or refers to; None for a file of another kind."""
    data = part.get("base64")
    mime = part.get("mime_type")
    if isinstance(data, str) and mime == "application/pdf":
        return document_block({"file_data": f"data:{mime};base64,{data}"})
    address = {"file_url": part.get("url"), "file_id": part.get("file_id")}
    if part.get("source_type") == "id":
        address["file_id"] = part.get("id")
    return document_block(address)


def _image(part: JsonObject) -> JsonDict | None:
    source = part.get("source")
    if isinstance(source, Mapping):
        return {"type": "image", "source": dict(source)}
    if part.get("base64"):
        mime = part.get("mime_type", "image/png")
        return image_block(f"data:{mime};base64,{part['base64']}")
    return image_block(part.get("url")) or image_by_id(part.get("file_id"))


def _as_ours(part: JsonObject) -> JsonDict | None:
    """A block of the Messages API, without what LangChain adds; None where it is none."""
    block = dict(part)
    block.pop("index", None)
    block.pop("cache_control", None)
    return block if block.get(PROOFS[block["type"]]) else None


def _thinking_block(part: JsonObject) -> JsonDict:
    """Reasoning in LangChain's own form, or in that of the responses API."""
    extras = part.get("extras") or {}
    proof = extras.get("signature") or part.get("encrypted_content") or part.get("id")
    summary = "\n".join(str(entry.get("text")) for entry in part.get("summary") or ())
    return thinking_block(str(part.get("reasoning") or summary) or None, proof)


def _result_block(item: ToolMessage) -> JsonDict:
    block = read_result(item.tool_call_id, item.content, _client_part)
    content = block["content"]
    is_text = isinstance(content, str) or all(kind(part) == "text" for part in content)
    if item.status == "error" and content and is_text:
        block["is_error"] = True
    return block


# Writing ------------------------------------------------------------------------------------------


def _rebuild_content(old: object, blocks: Sequence[JsonObject], read: ReadPart) -> Any:
    """Content that says *blocks*, in the form of the *old* one, whose parts stay.

    *read* makes a block of a part.
    """
    if not isinstance(old, list) and all(kind(block) == "text" for block in blocks):
        return join_texts(blocks)
    parts = [(read(part), part) for part in old] if isinstance(old, list) else []
    content: list[Any] = []
    for block in blocks:
        said, part = take_part(parts, block)
        if said is not None:
            content.append(part)
        elif kind(block) in ("image", "document", *OURS):
            content.append(dict(block))
        else:
            content.append({"type": "text", "text": block_text(block)})
    return content


def _rebuild_reply(
    old: object, spoken: Sequence[JsonObject], uses: Mapping[object, JsonObject]
) -> Any:
    """The content of a reply that says *spoken*, with only the calls *uses* in it."""
    if not isinstance(old, list):
        return _rebuild_content(old, spoken, _part_block)
    waiting = list(spoken)
    content: list[Any] = []
    for part in old:
        if kind(part) in CALLS:
            use = uses.get(part.get("call_id") or part.get("id"))
            if use is not None:
                content.append(_with_input(part, use["input"]))
            continue
        block = _part_block(part)
        if block in waiting:
            waiting.remove(block)
            content.append(part)
    content += _rebuild_content([], waiting, _part_block)
    return content


def _with_input(part: JsonObject, arguments: JsonObject) -> JsonObject:
    """A content block of a call with *arguments*, without an id by which it is stored."""
    key = next((name for name in ("input", "args", "arguments") if name in part), "input")
    old = part.get(key)
    if arguments_object(old) == arguments:
        return part
    plain = dict(part)
    plain.pop("partial_json", None)
    plain.pop("index", None)
    if "call_id" in plain:
        plain.pop("id", None)
    plain[key] = arguments_json(arguments) if isinstance(old, str) else dict(arguments)
    return plain
