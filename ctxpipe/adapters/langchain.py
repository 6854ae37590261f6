"""Adapter for LangChain's agents, and so for LangGraph and deepagents: a middleware.

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
from ..messages.vocabulary import SYSTEM_ROLES
from ..pipeline import ContextPipeline
from ..providers.refusals import as_refusal
from ..storage import JournalStorage
from ..summarizers import AgentAnswer, AgentModel, SummaryRefused
from ..wire.breakpoints import ContentMarks, ItemMarks
from ..wire.codec import Codec, Item, Reading, Side
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
    split_blocks,
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
"""Types of content blocks for calls, which a message also has in ``tool_calls``."""
REQUIRED_FIELDS = {"thinking": "signature", "redacted_thinking": "data", "document": "source"}
"""Types of content blocks in the form of the Messages API, with the field that each must have."""
MODEL_ONLY = frozenset({"reasoning", "redacted_thinking", "thinking"})
"""Types of content blocks that only a model writes; in a message of the client they are unknown."""
WRITTEN_TOKENS = ("cache_creation", "ephemeral_5m_input_tokens", "ephemeral_1h_input_tokens")
"""Fields of LangChain's usage for tokens that are written to the cache."""

Request: TypeAlias = "ModelRequest[Any]"
ReadPart: TypeAlias = Callable[[Any], JsonDict]
Reply: TypeAlias = Any
"""A ModelResponse, an ExtendedModelResponse or an AIMessage."""


def ctxpipe_middleware(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    cache_breakpoints: int = 0,
    summary_model: str | BaseChatModel | None = None,
) -> AgentMiddleware[Any, Any, Any]:
    """Return a middleware for ``create_agent`` that calls the model with the context.

    The agent's state, and a checkpointer, keep every message unchanged. The middleware works for
    ``invoke`` and ``ainvoke``, streams, and every model. It calibrates token counts by
    ``usage_metadata``, and after a refusal because of the length, an error of any model package, it
    calls the model once more with a shorter context. After an internal error, which is logged, the
    model is called with the original messages. Put it last in the list, so that it is the innermost
    middleware and sees the messages that are sent.

    *session_id* is the name of the conversation, or a function from the ``ModelRequest`` to the
    name. Without it, the name comes from an enclosing ``with conversation(name):`` (see
    `ctxpipe.wire.conversation`), else it is LangGraph's ``thread_id``. Conversations with the same
    name, such as sub-agents in a thread, or without a name, are distinguished by their histories.
    *journal* stores each conversation separately.

    *cache_breakpoints* is the maximum number of prompt-cache breakpoints to add where they save
    most: before and after what a turn has rewritten, for Claude at the end of the prompt, and after
    a system prompt that is one of the messages. Claude and OpenAI's models from GPT-5.6 on have
    breakpoints; requests to other models get none.

    Summaries are written by the agent's model, with its client and its credentials. *summary_model*
    is another model for them, or the name of another model of the same provider; without it the
    name is the environment variable SUMMARY_MODEL.

    Raises SettingsError if a setting is invalid. The import of this module raises
    AdapterUnavailable if LangChain is missing or has an unexpected form.
    """
    if isinstance(summary_model, BaseChatModel):
        adapter = Adapter(pipeline, session_id, journal, cache_breakpoints=cache_breakpoints)
        return _AgentMiddleware(adapter, summary_model)
    adapter = Adapter(
        pipeline,
        session_id,
        journal,
        cache_breakpoints=cache_breakpoints,
        summary_model=summary_model,
    )
    return _AgentMiddleware(adapter, summary_model=None)


class _AgentMiddleware(AgentMiddleware[Any, Any, Any]):
    def __init__(self, adapter: Adapter, summary_model: BaseChatModel | None) -> None:
        super().__init__()
        self._adapter = adapter
        self._summary_model = summary_model
        self._tools: tuple[Sequence[object], list[object]] = ((), [])

    @property
    def name(self) -> str:
        """Name of the middleware in LangChain."""
        return "ctxpipe"

    async def awrap_model_call(
        self, request: Request, handler: Callable[[Request], Awaitable[ModelResponse[Any]]]
    ) -> Reply:
        """Call the model with a shaped context; return the reply.

        If the model refuses the context as too long, a shorter one is sent once; other errors are
        raised. The usage of the reply calibrates token counts.
        """
        exchange = await self._begin_exchange(request, is_blocking=False)
        if exchange is None:
            return await handler(request)
        try:
            reply = await handler(_request_to_send(request, exchange))
        except Exception as error:
            if not await exchange.shorten(as_refusal(error)):
                raise
            reply = await handler(_request_to_send(request, exchange))
        exchange.calibrate(_usage(reply))
        return reply

    def wrap_model_call(
        self, request: Request, handler: Callable[[Request], ModelResponse[Any]]
    ) -> Reply:
        """Call the model with a shaped context, in a synchronous caller's thread; return the reply.

        If the model refuses the context as too long, a shorter one is sent once; other errors are
        raised. The usage of the reply calibrates token counts.
        """
        exchange = sync.wait_for(self._begin_exchange(request, is_blocking=True))
        if exchange is None:
            return handler(request)
        try:
            reply = handler(_request_to_send(request, exchange))
        except Exception as error:
            if not sync.wait_for(exchange.shorten(as_refusal(error))):
                raise
            reply = handler(_request_to_send(request, exchange))
        sync.call_on_loop(exchange.calibrate, _usage(reply))
        return reply

    async def _begin_exchange(self, request: Request, *, is_blocking: bool) -> Exchange | None:
        """Shape the context of *request*; return the exchange, or None if it is sent unchanged."""
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
            names=_thread_names(request),
            agent_model=self._agent_model(request.model, is_blocking=is_blocking),
        )

    def _agent_model(self, model: BaseChatModel, *, is_blocking: bool) -> LangChainModel:
        """Return the model for summaries: the one from the settings, else *model*, the agent's."""
        api = "anthropic" if "anthropic" in str(getattr(model, "_llm_type", "")) else ""
        if self._summary_model is None:
            return LangChainModel(
                model=model,
                is_blocking=is_blocking,
                name=_model_name(model),
                summary_model=self._adapter.summary_model,
                api=api,
            )
        name = _model_name(self._summary_model) or type(self._summary_model).__name__
        return LangChainModel(
            model=self._summary_model,
            is_blocking=is_blocking,
            name=name,
            summary_model=name,
            api=api,
        )

    def _descriptions(self, tools: Sequence[object]) -> list[object]:
        """Return the definitions of *tools*, whose tokens are counted.

        They are cached for the next call with the same tools.
        """
        previous_tools, descriptions = self._tools
        if is_unchanged(tools, previous_tools):
            return descriptions
        descriptions = [_description(tool) for tool in tools]
        self._tools = (list(tools), descriptions)
        return descriptions


# The agent's model --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class LangChainModel(AgentModel):
    """A chat *model* of LangChain, that of the agent or another one for summaries.

    *is_blocking* is True if the agent was called synchronously: then the asynchronous client of
    *model* may belong to another event loop and is not used.
    """

    model: BaseChatModel = field(repr=False)
    is_blocking: bool = False

    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Call the model outside of the agent's graph, so that the answer is not streamed."""
        chat_model = self.model
        if model is not None and model != self.name:
            chat_model = _with_name(chat_model, model)
        chat_model = _with_limit(chat_model, max_tokens)
        messages = [HumanMessage(prompt)]
        if self.is_blocking:
            invoke = partial(chat_model.invoke, messages, NOT_STREAMED)
            reply = await to_thread.run_sync(invoke, abandon_on_cancel=True)
        else:
            reply = await chat_model.ainvoke(messages, NOT_STREAMED)
        return AgentAnswer(str(reply.text), _stop_reason(reply.response_metadata), _usage(reply))


NOT_STREAMED: Any = {"tags": ["nostream"], "run_name": "ctxpipe summary"}
"""Settings of a call whose answer LangGraph excludes from the agent's stream of messages."""


def _stop_reason(details: JsonObject) -> str | None:
    """Return why an answer ended; the name of the field depends on the provider."""
    for name in ("finish_reason", "stop_reason"):
        reason = details.get(name)
        if isinstance(reason, str):
            return reason
    reason = (details.get("incomplete_details") or {}).get("reason")
    return reason if isinstance(reason, str) else None


def _with_name(model: BaseChatModel, name: str) -> BaseChatModel:
    """Return a copy of *model* with its client and with another model *name*.

    Raises SummaryRefused if the class has no field for the name.
    """
    for key in ("model_name", "model"):
        if key in type(model).model_fields:
            return model.model_copy(update={key: name})
    raise SummaryRefused(
        f"{type(model).__name__} cannot be asked for another model by its name;"
        " give summary_model= a model of LangChain"
    )


def _with_limit(model: BaseChatModel, max_tokens: int) -> BaseChatModel:
    """Return *model*, or a copy with a higher limit if its limit is too low for *max_tokens*.

    Tokens for thinking are added, because they count against the limit too.
    """
    thinking = getattr(model, "thinking", None)
    required_tokens = max_tokens
    if isinstance(thinking, Mapping):
        required_tokens += thinking.get("budget_tokens") or 0
    for key in ("max_tokens", "max_output_tokens"):
        if key not in type(model).model_fields:
            continue
        limit = getattr(model, key, None)
        if limit is not None and limit < required_tokens:
            return model.model_copy(update={key: required_tokens})
    return model


# Requests and replies -----------------------------------------------------------------------------


def _request_to_send(request: Request, exchange: Exchange) -> Request:
    """Return *request* with the context, the same object if nothing has changed."""
    changes: JsonDict = {}
    if exchange.is_changed:
        changes["messages"] = exchange.items
    options = exchange.result.request_options
    if options and type(request.model).__module__.startswith("langchain_anthropic"):
        changes["model_settings"] = {**request.model_settings, **options}
    if not changes:
        return request
    return request.override(**changes)


def _thread_names(request: Request) -> Iterator[object]:
    """Yield the values in which LangGraph may store the name of the thread."""
    yield getattr(getattr(request.runtime, "execution_info", None), "thread_id", None)
    try:
        from langgraph.config import get_config

        yield get_config().get("configurable", {}).get("thread_id")
    except (ImportError, RuntimeError):  # outside of a graph
        return


def _model_name(model: object) -> str | None:
    """Return the name of LangChain's *model*, from one of two attributes; None if it has none."""
    for attribute in ("model_name", "model"):
        name = getattr(model, attribute, None)
        if isinstance(name, str):
            return name
    return None


def _description(tool: object) -> object:
    """Return the name, description and parameters of *tool*; unchanged if it is a mapping."""
    schema = getattr(tool, "tool_call_schema", None)
    if isinstance(tool, Mapping) or schema is None:
        return tool
    return {
        "name": getattr(tool, "name", ""),
        "description": getattr(tool, "description", ""),
        "parameters": schema if isinstance(schema, dict) else schema.model_json_schema(),
    }


def _usage(reply: Reply) -> dict[str, int] | None:
    """Return the first usage that *reply* reports, in the form of the Messages API, or None."""
    response = getattr(reply, "model_response", reply)
    for message in getattr(response, "result", None) or [response]:
        reported_usage = getattr(message, "usage_metadata", None)
        if reported_usage:
            details = reported_usage.get("input_token_details") or {}
            return usage(
                reported_usage.get("input_tokens"),
                read=details.get("cache_read"),
                written=sum(details.get(name) or 0 for name in WRITTEN_TOKENS),
                output=reported_usage.get("output_tokens"),
            )
    return None


# Messages -----------------------------------------------------------------------------------------


class _MessageMarks(ContentMarks):
    """Breakpoints on the content parts of LangChain's messages."""

    def with_content(self, item: Item, content: list[Any]) -> Item:
        """Return a copy of the message *item* with other parts as its *content*."""
        return item.model_copy(update={"content": content})


class LangChainCodec(Codec):
    """Codec of LangChain's messages."""

    def marks(self) -> ItemMarks:
        """Return how messages have cache breakpoints: on their last content part."""
        return _MessageMarks("text")

    def read(self, item: Item) -> Reading:
        """Return *item* as blocks."""
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
        """Return the content of the message."""
        return read_result("", item.content, _client_part)["content"]

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """Return a copy of *item* with *blocks* as its content.

        The id, the artifact and the metadata stay.
        """
        if not isinstance(item, AIMessage):
            if kind(blocks[0]) == "tool_result":
                blocks = result_blocks(blocks[0].get("content"))
            read_part = _part_block if _side_of(item) == "assistant" else _client_part
            content = _rebuild_content(item.content, blocks, read_part)
            return item.model_copy(update={"content": content})
        _, call_blocks, others = split_blocks(blocks)
        block_of = {block["id"]: block for block in call_blocks}
        calls = [
            {**call, "args": dict(block_of[call["id"]]["input"])}
            for call in item.tool_calls
            if call["id"] in block_of
        ]
        fields = dict(item.additional_kwargs)
        fields.pop("tool_calls", None)
        fields.pop("function_call", None)
        changes = {
            "content": _rebuild_reply(item.content, others, block_of),
            "tool_calls": calls,
            "invalid_tool_calls": [
                call for call in item.invalid_tool_calls if call["id"] in block_of
            ],
            "additional_kwargs": fields,
        }
        return item.model_copy(update=changes)

    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Return new messages with *blocks*: one for each result, and one for all others."""
        results, call_blocks, others = split_blocks(blocks)
        items: list[Item] = []
        for block in results:
            text = result_text(block.get("content"))
            items.append(ToolMessage(text, tool_call_id=block["tool_use_id"]))
        if not call_blocks and not others:
            return items
        content = _rebuild_content("", others, _part_block)
        if role == "assistant":
            calls = [
                {"id": block["id"], "name": block["name"], "args": dict(block["input"])}
                for block in call_blocks
            ]
            return [*items, AIMessage(content, tool_calls=calls)]
        if role == "system":
            return [*items, SystemMessage(content)]
        return [*items, HumanMessage(content)]


CODEC = LangChainCodec()


def _side_of(item: Item) -> Side | None:
    """Return the author of *item*, which is no result; None if its class and role are unknown."""
    role = item.role if isinstance(item, ChatMessage) else None
    if isinstance(item, AIMessage) or role == "assistant":
        return "assistant"
    if isinstance(item, SystemMessage) or role in SYSTEM_ROLES:
        return "system"
    if isinstance(item, HumanMessage) or role == "user":
        return "user"
    return None


def _content_blocks(content: str | list[Any], read_part: ReadPart) -> list[JsonDict]:
    """Return the blocks of a message's content without calls; *read_part* converts a part."""
    if isinstance(content, str):
        return [read_part(content)] if content else []
    return [read_part(part) for part in content if kind(part) not in CALLS]


def _part_block(part: Any, unknown: ReadPart = opaque_block) -> JsonDict:
    """Return the block of a *part* of a content; *unknown* converts a part of an unknown type."""
    if isinstance(part, str):
        part = {"type": "text", "text": part}
    name = kind(part)
    if name == "text":
        return text_or_opaque(part.get("text"), part, unknown)
    if name in REQUIRED_FIELDS:
        return _messages_block(part) or unknown(part)
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
    """Return the block of a *part* that the client wrote; thinking is unknown there."""
    if kind(part) == "file":
        document = _file(part)
        if document is not None:
            return document
    if kind(part) in MODEL_ONLY:
        return client_block(part)
    return _part_block(part, client_block)


def _file(part: JsonObject) -> JsonDict | None:
    """Return a document block for *part*, a file with data or a reference; None for other types."""
    data = part.get("base64")
    mime = part.get("mime_type")
    if isinstance(data, str) and mime == "application/pdf":
        return document_block({"file_data": f"data:{mime};base64,{data}"})
    address = {"file_url": part.get("url"), "file_id": part.get("file_id")}
    if part.get("source_type") == "id":
        address["file_id"] = part.get("id")
    return document_block(address)


def _image(part: JsonObject) -> JsonDict | None:
    """Return the image block for *part*, or None if it names no data, URL or file."""
    source = part.get("source")
    if isinstance(source, Mapping):
        return {"type": "image", "source": dict(source)}
    if part.get("base64"):
        mime = part.get("mime_type", "image/png")
        return image_block(f"data:{mime};base64,{part['base64']}")
    return image_block(part.get("url")) or image_by_id(part.get("file_id"))


def _messages_block(part: JsonObject) -> JsonDict | None:
    """Return *part* as a block of the Messages API, without the fields that LangChain adds.

    Returns None if the required field is missing.
    """
    block = dict(part)
    block.pop("index", None)
    block.pop("cache_control", None)
    return block if block.get(REQUIRED_FIELDS[block["type"]]) else None


def _thinking_block(part: JsonObject) -> JsonDict:
    """Return reasoning, in LangChain's form or that of the responses API, as a block."""
    extras = part.get("extras") or {}
    signature = extras.get("signature") or part.get("encrypted_content") or part.get("id")
    summary = "\n".join(str(entry.get("text")) for entry in part.get("summary") or ())
    return thinking_block(str(part.get("reasoning") or summary) or None, signature)


def _result_block(item: ToolMessage) -> JsonDict:
    """Return the tool_result block for *item*.

    A failed result has ``is_error`` only if its content is text, as the API requires.
    """
    block = read_result(item.tool_call_id, item.content, _client_part)
    content = block["content"]
    is_text = isinstance(content, str) or all(kind(part) == "text" for part in content)
    if item.status == "error" and content and is_text:
        block["is_error"] = True
    return block


# Writing ------------------------------------------------------------------------------------------


def _rebuild_content(old_content: object, blocks: Sequence[JsonObject], read_part: ReadPart) -> Any:
    """Return *blocks* as a content in the form of the *old_content*: a text or a list of parts.

    Parts with the same content are the same objects. *read_part* converts a part to a block.
    """
    old_parts: list[tuple[Any, Any]] = []
    if isinstance(old_content, list):
        old_parts = [(read_part(part), part) for part in old_content]
    elif all(kind(block) == "text" for block in blocks):
        return join_texts(blocks)
    content: list[Any] = []
    for block in blocks:
        old_block, part = take_part(old_parts, block)
        if old_block is not None:
            content.append(part)
        elif kind(block) == "image" or kind(block) in REQUIRED_FIELDS:
            content.append(dict(block))
        else:
            content.append({"type": "text", "text": block_text(block)})
    return content


def _rebuild_reply(
    old_content: object, blocks: Sequence[JsonObject], calls: Mapping[object, JsonObject]
) -> Any:
    """Return the content of a reply with *blocks*, and with only those *calls*, by id, in it."""
    if not isinstance(old_content, list):
        return _rebuild_content(old_content, blocks, _part_block)
    new_blocks = list(blocks)
    content: list[Any] = []
    for part in old_content:
        if kind(part) in CALLS:
            call = calls.get(part.get("call_id") or part.get("id"))
            if call is not None:
                content.append(_with_input(part, call["input"]))
            continue
        block = _part_block(part)
        if block in new_blocks:
            new_blocks.remove(block)
            content.append(part)
    content += _rebuild_content([], new_blocks, _part_block)
    return content


def _with_input(part: JsonObject, arguments: JsonObject) -> JsonObject:
    """Return *part*, a content block of a call, with *arguments*.

    The copy has no id of a stored item, for which the provider would use its stored copy.
    """
    key = "input"
    for name in ("input", "args", "arguments"):
        if name in part:
            key = name
            break
    old_arguments = part.get(key)
    if arguments_object(old_arguments) == arguments:
        return part
    plain = dict(part)
    plain.pop("partial_json", None)
    plain.pop("index", None)
    if "call_id" in plain:
        plain.pop("id", None)
    if isinstance(old_arguments, str):
        plain[key] = arguments_json(arguments)
    else:
        plain[key] = dict(arguments)
    return plain
