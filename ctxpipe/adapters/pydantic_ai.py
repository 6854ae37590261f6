"""Adapter for pydantic-ai's agents: a capability.

``Agent(model, capabilities=[Ctxpipe(pipeline)])``
"""

from __future__ import annotations

import copy
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .._values import JsonDict, JsonObject
from ..errors import InvalidHistory
from ..messages import as_json, is_blank, kind
from ..providers.cache_rules import CacheRules
from ..providers.refusals import as_refusal
from ..summarizers import AgentAnswer, AgentModel, SummaryRefused
from ..wire.breakpoints import ItemMarks, marking_rules
from ..wire.codec import Codec, Item, Reading
from ..wire.conversations import SessionName
from ..wire.exchange import Adapter, Exchange
from ..wire.usage import usage
from ..wire.values import (
    arguments_json,
    arguments_object,
    block_text,
    client_block,
    document_block,
    has_text,
    image_block,
    image_url,
    instruction_block,
    join_texts,
    opaque_block,
    result_block,
    result_blocks,
    result_text,
    split_blocks,
    take_part,
    text_block,
    text_or_opaque,
    thinking_block,
    tool_reference,
    tool_search_block,
    use_block,
)
from ..wire.versions import Versions, load

VERSIONS = Versions("pydantic-ai-slim", "pydantic-ai", "2.64.0", "2.68.0")
load(
    "pydantic_ai.capabilities",
    VERSIONS,
    {
        "AbstractCapability.for_run": ["ctx"],
        "AbstractCapability.prepare_model_request": ["ctx", "request_context"],
        "AbstractCapability.on_model_request_error": ["ctx", "request_context", "error"],
        "AbstractCapability.after_model_request": ["ctx", "request_context", "response"],
    },
)

from pydantic_ai import RetryModelRequest, RunContext  # noqa: E402
from pydantic_ai.capabilities import AbstractCapability  # noqa: E402
from pydantic_ai.direct import model_request  # noqa: E402
from pydantic_ai.messages import (  # noqa: E402
    BinaryContent,
    CachePoint,
    CompactionPart,
    DocumentUrl,
    ImageUrl,
    ModelRequest,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UploadedFile,
    UserPromptPart,
)
from pydantic_ai.models import Model  # noqa: E402

if TYPE_CHECKING:
    from pydantic_ai.models import ModelRequestContext

    from ..pipeline import ContextPipeline
    from ..storage import JournalStorage

__all__ = ["Ctxpipe", "PydanticCodec"]


class Ctxpipe(AbstractCapability[Any]):
    """Capability of pydantic-ai that calls the model with the context instead of the history.

    The context is prepared for each attempt and never stored: ``result.all_messages()`` has every
    message unchanged. The capability works for every model, plain and streamed. It calibrates token
    counts by the usage, and after a refusal because of the length the model is called once more
    with a shorter context. After an internal error, which is logged, the original messages are
    sent.

    *session_id* is the name of the conversation, or a function from the ``RunContext`` to the name.
    Without it, the name comes from an enclosing ``with conversation(name):`` (see
    `ctxpipe.wire.conversation`), else it is the run's ``conversation_id``. Conversations with the
    same name, such as agents that a tool runs, or without a name, are distinguished by their
    histories. *journal* stores each conversation separately.

    *cache_breakpoints* is the maximum number of prompt-cache breakpoints to add where they save
    most, as a ``CachePoint`` of pydantic-ai: before and after what a turn has rewritten, and for
    Claude at the end of the prompt. Those after the system prompt and the tools are placed by
    pydantic-ai's own setting ``cache``. Claude, also on Bedrock, and OpenAI's models from GPT-5.6
    on have breakpoints; requests to other models, and to OpenRouter, get none.

    Summaries are written by the agent's model, with its client and its credentials. *summary_model*
    is another model for them, or the name of another model of the same provider; without it the
    name is the environment variable SUMMARY_MODEL.

    Raises SettingsError if a setting is invalid. The import of this module raises
    AdapterUnavailable if pydantic-ai is missing or has an unexpected form.
    """

    def __init__(
        self,
        pipeline: ContextPipeline,
        *,
        session_id: SessionName | None = None,
        journal: JournalStorage | None = None,
        cache_breakpoints: int = 0,
        summary_model: str | Model | None = None,
    ) -> None:
        self._summary_model: Model | None = None
        name: str | None = None
        if isinstance(summary_model, Model):
            self._summary_model = summary_model
        else:
            name = summary_model
        self._adapter = Adapter(
            pipeline,
            session_id,
            journal,
            cache_breakpoints=cache_breakpoints,
            summary_model=name,
        )

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:  # noqa: ARG002
        """Return the capability for one run, which remembers its last request."""
        return _Run(self._adapter, self._summary_model)


class _Run(AbstractCapability[Any]):
    """The capability of one run, with the exchange of its last request."""

    def __init__(self, adapter: Adapter, summary_model: Model | None) -> None:
        self._adapter = adapter
        self._summary_model = summary_model
        self._exchange: Exchange | None = None
        self._is_shorter = False  # the last request was refused and has been shortened

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:  # noqa: ARG002
        return self

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Replace the messages of the request by the context."""
        if not self._is_shorter:
            self._exchange = await self._begin_exchange(ctx, request_context)
        self._is_shorter = False
        if self._exchange is None or not self._exchange.is_changed:
            return request_context
        return dataclasses.replace(request_context, messages=list(self._exchange.items))

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Retry with a shorter context if the prompt was too long; raise every other error."""
        del ctx
        if self._exchange is None or getattr(request_context, "attempt", 1) > 1:
            raise error
        self._is_shorter = await self._exchange.shorten(as_refusal(error))
        if not self._is_shorter:
            raise error
        raise RetryModelRequest from error

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        """Calibrate token counts by the usage."""
        del ctx, request_context
        if self._exchange is not None:
            self._exchange.calibrate(_usage(response))
        return response

    async def _begin_exchange(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> Exchange | None:
        """Shape the context of a request; return the exchange, or None if it is sent unchanged."""
        conversation = getattr(ctx, "conversation_id", None)
        parameters = request_context.model_request_parameters
        parts = getattr(parameters, "instruction_parts", None) or ()
        system = [text_block(part.content) for part in parts if has_text(part.content)]
        arguments = {
            "system": system or None,
            "tools": [_description(tool) for tool in parameters.function_tools],
            "request": {"model": getattr(request_context.model, "model_name", None)},
        }
        return await self._adapter.begin(
            PydanticCodec(_marks_of(request_context)),
            request_context.messages,
            arguments,
            request=ctx,
            names=[conversation],
            agent_model=self._agent_model(request_context),
        )

    def _agent_model(self, request_context: ModelRequestContext) -> PydanticModel:
        """Return the model for summaries: the one from the settings, else the agent's."""
        model = request_context.model
        api = model.system
        summary_model = self._adapter.summary_model
        if self._summary_model is not None:
            model = self._summary_model
            summary_model = model.model_name
        settings = getattr(request_context, "model_settings", None) or {}
        return PydanticModel(
            model=model,
            settings={name: settings[name] for name in ROUTING if name in settings},
            name=model.model_name,
            summary_model=summary_model,
            api=api,
        )


def _description(tool: Any) -> dict[str, object]:
    """Return the name, description and parameters of *tool*."""
    return {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters_json_schema,
    }


# The agent's model --------------------------------------------------------------------------------

ROUTING = (
    *("extra_headers", "service_tier", "openai_service_tier", "openai_store", "openai_user"),
    *("anthropic_metadata", "anthropic_service_tier", "openrouter_provider"),
)
"""Settings of a request that determine where, how and for whom it is processed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PydanticModel(AgentModel):
    """A *model* of pydantic-ai, that of the agent or another one for summaries.

    *settings* are added to the settings of the model in each call.
    """

    model: Model = dataclasses.field(repr=False)
    settings: JsonObject = dataclasses.field(default_factory=dict, repr=False)

    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Send *prompt* to *model*, or to the agent's own without one; return the answer.

        The agent's run and its capabilities do not see this request. Errors of the model are
        raised.
        """
        called_model = self.model
        if model is not None and model != self.name:
            called_model = _with_name(called_model, model.removeprefix(f"{called_model.system}:"))
        settings: Any = {**self.settings, **_limit_setting(called_model, max_tokens)}
        messages = [ModelRequest(parts=[UserPromptPart(prompt)])]
        reply = await model_request(called_model, messages, model_settings=settings)
        text = "".join([part.content for part in reply.parts if isinstance(part, TextPart)])
        return AgentAnswer(text, reply.finish_reason, _usage(reply), reply.model_name or "")


def _with_name(model: Model, name: str) -> Model:
    """Return a copy of *model* with its client and with another model *name*.

    Raises SummaryRefused if the name of the copy cannot be changed.
    """
    new_model = copy.copy(model)
    inner_model = getattr(model, "wrapped", None)
    if isinstance(inner_model, Model):
        vars(new_model)["wrapped"] = _with_name(inner_model, name)
    else:
        vars(new_model)["_model_name"] = name
    vars(new_model).pop("profile", None)  # a cached value of the old name
    if new_model.model_name != name:
        raise SummaryRefused(
            f"{type(model).__name__} cannot be asked for another model by its name;"
            " give summary_model= a model of pydantic-ai"
        )
    return new_model


def _limit_setting(model: Model, max_tokens: int) -> dict[str, int]:
    """Return the setting that raises the limit of *model*, {} if its limit is high enough.

    Anthropic's API requires a limit, for which pydantic-ai uses 4,096. Tokens for thinking are
    added, because they count against the limit too.
    """
    settings: JsonObject = {**(model.settings or {})}
    limit = settings.get("max_tokens")
    if limit is None and model.system == "anthropic":
        limit = 4096
    thinking = settings.get("anthropic_thinking") or {}
    required_tokens = max_tokens + (thinking.get("budget_tokens") or 0)
    if limit is None or limit >= required_tokens:
        return {}
    return {"max_tokens": required_tokens}


def _usage(response: ModelResponse) -> dict[str, int] | None:
    """Return the usage of *response* in the form of the Messages API, or None."""
    reported_usage = response.usage
    return usage(
        reported_usage.input_tokens,
        read=reported_usage.cache_read_tokens,
        written=reported_usage.cache_write_tokens,
        output=reported_usage.output_tokens,
    )


# Messages -----------------------------------------------------------------------------------------


class PydanticCodec(Codec):
    """Codec of pydantic-ai's messages. A request may have results and texts of the user.

    *marks* places cache breakpoints in the messages; without it they get none.
    """

    def __init__(self, marks: ItemMarks | None = None) -> None:
        self._marks = marks

    def marks(self) -> ItemMarks | None:
        """Return how messages have cache breakpoints; None if the model's API has none."""
        return self._marks

    def is_summary(self, item: Item) -> bool:
        """Return True if *item* has a compaction part."""
        return any(isinstance(part, CompactionPart) for part in getattr(item, "parts", ()))

    def read(self, item: Item) -> Reading:
        """Return *item* as blocks."""
        if not isinstance(item, ModelRequest | ModelResponse):
            return self.read_unknown(item, type(item).__name__)
        is_reply = isinstance(item, ModelResponse)
        unknown = opaque_block if is_reply else client_block
        blocks: list[JsonDict] = []
        for group in _groups(item.parts):
            blocks += _group_blocks(group, unknown)
        if is_reply:
            return Reading("assistant", blocks)
        has_result = any(kind(block) == "tool_result" for block in blocks)
        return Reading("result" if has_result else "user", blocks)

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """Return a copy of *item* with *blocks* as its content.

        Parts with the same content are the same objects.
        """
        waiting_blocks = [(block, block) for block in blocks]
        is_reply = isinstance(item, ModelResponse)
        unknown = opaque_block if is_reply else client_block
        parts: list[Any] = []
        for group in _groups(item.parts):
            old_blocks = _group_blocks(group, unknown)
            new_blocks = [take_part(waiting_blocks, block)[1] for block in old_blocks]
            if new_blocks == old_blocks:
                parts += group
                continue
            parts += _rebuild_group(group, [block for block in new_blocks if block is not None])
        if waiting_blocks:
            text = join_texts(block for block, _ in waiting_blocks)
            parts.append(TextPart(text) if is_reply else UserPromptPart(text))
        return dataclasses.replace(item, parts=parts)

    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Return a new message with *blocks*."""
        if role == "assistant":
            return [ModelResponse(parts=[_new_reply_part(block) for block in blocks])]
        if role == "system":
            return [ModelRequest(parts=[SystemPromptPart(join_texts(blocks))])]
        results, _, others = split_blocks(blocks)
        parts: list[Any] = []
        for block in results:
            text = result_text(block.get("content"))
            parts.append(ToolReturnPart("tool", text, block["tool_use_id"]))
        contents = [_new_content(block) for block in others]
        if contents and all(isinstance(content, str) for content in contents):
            parts.append(UserPromptPart("\n".join(contents)))
        elif contents:
            parts.append(UserPromptPart(contents))
        return [ModelRequest(parts=parts)]


TOOL_SEARCH = "tool-search"
CAPABILITY_LOAD = "capability-load"
"""pydantic-ai's names for the kinds of tools that load other tools."""

REASONING_FIELDS = frozenset({"content", "reasoning", "reasoning_content"})
"""Fields of chat completions from which pydantic-ai reads thinking."""


# Cache breakpoints --------------------------------------------------------------------------------

_MARKED_BEFORE_MESSAGES = (
    *("anthropic_cache_instructions", "anthropic_cache_tool_definitions"),
    *("bedrock_cache_instructions", "bedrock_cache_tool_definitions", "openai_cache_instructions"),
)
_MARKED_AT_END = ("anthropic_cache", "anthropic_cache_messages", "bedrock_cache_messages")
"""Settings by which pydantic-ai places a breakpoint; with one of them ``cache`` has no effect."""


@dataclasses.dataclass(frozen=True)
class PartMarks(ItemMarks):
    """Breakpoints as a ``CachePoint`` at the end of a request.

    A CachePoint that begins a part marks what is before it: the result of a tool, for example.
    """

    reserved_count: int = 0
    ends_prompt: bool = False

    def has_mark(self, item: Item) -> bool:
        """Return True if the user's content in *item* has a CachePoint."""
        contents = (element for part in _user_parts(item) for element in part.content)
        return any(isinstance(element, CachePoint) for element in contents)

    def without_marks(self, item: Item) -> Item:
        """Return *item* without CachePoints, and without parts that have nothing else."""
        if not self.has_mark(item):
            return item
        parts: list[Any] = []
        for part in item.parts:
            if not isinstance(part, UserPromptPart) or isinstance(part.content, str):
                parts.append(part)
                continue
            content = [element for element in part.content if not isinstance(element, CachePoint)]
            if content:
                parts.append(dataclasses.replace(part, content=content))
        return dataclasses.replace(item, parts=parts)

    def is_instruction(self, item: Item) -> bool:  # noqa: ARG002
        """Return False: instructions are no messages, and a system prompt has no CachePoint."""
        return False

    def is_markable(self, item: Item) -> bool:
        """Return True if *item* ends with a text, an image, or a result without files.

        Bedrock refuses a CachePoint after some kinds of documents.
        """
        if not isinstance(item, ModelRequest) or not item.parts:
            return False
        last = item.parts[-1]
        if isinstance(last, ToolReturnPart):
            return not getattr(last, "files", None)
        if not isinstance(last, UserPromptPart):
            return isinstance(last, RetryPromptPart)
        content = [last.content] if isinstance(last.content, str) else last.content
        element = content[-1] if content else ""
        if isinstance(element, str):
            return not is_blank(element)
        return kind(_content_block(element)) == "image"

    def with_mark(self, item: Item, rules: CacheRules) -> Item:  # noqa: ARG002
        """Return a copy of *item* with a CachePoint at its end; its form is the same for all."""
        *others, last = item.parts
        if isinstance(last, UserPromptPart):
            content = [last.content] if isinstance(last.content, str) else [*last.content]
            marked = dataclasses.replace(last, content=[*content, CachePoint()])
            return dataclasses.replace(item, parts=[*others, marked])
        return dataclasses.replace(item, parts=[*item.parts, UserPromptPart([CachePoint()])])


def _user_parts(item: Item) -> list[UserPromptPart]:
    """Return the parts of *item* with content of the user that has several elements."""
    if not isinstance(item, ModelRequest):
        return []
    parts = [part for part in item.parts if isinstance(part, UserPromptPart)]
    return [part for part in parts if not isinstance(part.content, str)]


def _marks_of(request_context: ModelRequestContext) -> PartMarks | None:
    """Return how the messages of a request are marked; None if they can have no CachePoint.

    pydantic-ai's settings for caching take some of the breakpoints that a request may have. It
    refuses a CachePoint after a tool's result for OpenRouter, which does not document one there.
    """
    model = request_context.model
    rules = marking_rules(model.model_name)
    if rules is None or model.system == "openrouter":
        return None
    settings: JsonObject = {
        **(model.settings or {}),
        **(getattr(request_context, "model_settings", None) or {}),
    }
    specific = [name for name in (*_MARKED_BEFORE_MESSAGES, *_MARKED_AT_END) if name in settings]
    if specific:
        marked = [name for name in specific if settings[name]]
        return PartMarks(len(marked), any(name in _MARKED_AT_END for name in marked))
    cache = settings.get("cache")
    if not cache:
        return PartMarks()
    if rules.has_own_mark:
        return PartMarks(reserved_count=1)  # after the instructions
    has_end = not isinstance(cache, Mapping) or bool(cache.get("messages", True))
    return PartMarks(reserved_count=2 + has_end, ends_prompt=has_end)  # instructions, tools


# Parts --------------------------------------------------------------------------------------------

TOOL_TEXT_CHARS = 2_000
"""Minimum length of a text of the user after a tool's return to be read as part of the result.

A tool may return a ``ToolReturn`` with further content, which pydantic-ai sends after the result as
a text of the user. A person who writes while tools run writes less.
"""


def _groups(parts: Sequence[Any]) -> list[list[Any]]:
    """Return *parts* in groups: a tool's return with its further content, all others alone."""
    groups: list[list[Any]] = []
    for part in parts:
        follows_return = bool(groups) and isinstance(groups[-1][0], ToolReturnPart)
        if follows_return and _is_tool_text(part):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _is_tool_text(part: Any) -> bool:
    """Return True if *part*, after a tool's return, is further content of that tool."""
    if not isinstance(part, UserPromptPart):
        return False
    contents = [part.content] if isinstance(part.content, str) else part.content
    texts = [content for content in contents if isinstance(content, str)]
    if len(texts) < len(contents):
        return False
    return sum(len(text) for text in texts) >= TOOL_TEXT_CHARS


def _group_blocks(group: Sequence[Any], unknown: Callable[..., JsonDict]) -> list[JsonDict]:
    """Return the blocks of *group*: those of its part, or one result with all content of a tool."""
    first, *tool_texts = group
    blocks = _part_blocks(first, unknown)
    if not tool_texts:
        return blocks
    [block] = blocks
    content = result_blocks(block["content"])
    for part in tool_texts:
        content += _part_blocks(part, unknown)
    return [{**block, "content": content}]


def _rebuild_group(group: Sequence[Any], blocks: Sequence[JsonObject]) -> list[Any]:
    """Return new parts for *group*, a part with the texts of its tool, from *blocks*.

    Texts of a tool whose blocks are all there are reused; the list is empty if nothing is left.
    """
    first, *tool_texts = group
    if not tool_texts or not blocks:
        new_part = _rebuild_part(first, blocks)
        return [] if new_part is None else [new_part]
    content = result_blocks(blocks[0].get("content"))
    unchanged_texts: list[Any] = []
    for part in tool_texts:
        text_blocks = _part_blocks(part, client_block)
        if all(block in content for block in text_blocks):
            content = [block for block in content if block not in text_blocks]
            unchanged_texts.append(part)
    return [_rebuild_return(first, content), *unchanged_texts]


def _part_blocks(part: Any, unknown: Callable[..., JsonDict]) -> list[JsonDict]:
    """Return the blocks of *part*; *unknown* converts a part of an unknown type."""
    match part:
        case ToolReturnPart():
            return [_result_block(part)]
        case RetryPromptPart():
            return [_retry_block(part)]
        case UserPromptPart():
            content = [part.content] if isinstance(part.content, str) else part.content
            return [_content_block(element) for element in content]
        case TextPart():
            return [_text(part.content)] if part.content else []
        case SystemPromptPart():
            return [instruction_block(_plain(part))] if part.content else []
        case ToolCallPart():
            block = use_block(part.tool_call_id, part.tool_name, arguments_object(part.args))
        case ThinkingPart():
            block = thinking_block(part.content or None, _signature(part))
        case _ if unknown is client_block:
            block = client_block(_plain(part), _name_of(part))
        case _ if getattr(part, "tool_kind", None) == TOOL_SEARCH:
            block = tool_search_block(_plain(part), _name_of(part), _tools_loaded_by(part))
        case _:
            block = opaque_block(_plain(part))
    return [block]


def _name_of(part: object) -> str:
    """Return pydantic-ai's name for the kind of *part*, else the name of its class."""
    for attribute in ("part_kind", "kind"):
        name = getattr(part, attribute, None)
        if isinstance(name, str):
            return name
    return type(part).__name__


def _signature(part: ThinkingPart) -> str | None:
    """Return the signature or the id of *part*, None if its API signs no thinking."""
    if part.signature:
        return part.signature
    # Without a signature, the id may be the name of the field from which the part was read.
    return None if part.id in REASONING_FIELDS else part.id


def _tools_loaded_by(part: object) -> list[str]:
    """Return the names of the tools that *part*, the return of a search or loader, has loaded."""
    tool_kind = getattr(part, "tool_kind", None)
    if tool_kind == TOOL_SEARCH:  # a search that has failed has no such field
        return [str(tool["name"]) for tool in getattr(part, "discovered_tools", ())]
    if tool_kind == CAPABILITY_LOAD and isinstance(getattr(part, "content", None), Mapping):
        return [str(getattr(part, "tool_name", ""))]
    return []


def _result_block(part: ToolReturnPart) -> JsonDict:
    """Return the tool_result block for *part*, with its text, files and loaded tools.

    A failed result has ``is_error`` only if it has a text and no files.
    """
    text = part.model_response_str()
    files = list(getattr(part, "files", None) or ())
    content: Any = text
    if files:
        content = [_content_block(element) for element in (text, *files)]
    references = [tool_reference(name) for name in _tools_loaded_by(part)]
    if references:
        content = [*result_blocks(content), *references]
    block = result_block(part.tool_call_id, content)
    if part.outcome in ("failed", "denied", "retried") and text and not files:
        block["is_error"] = True
    return block


def _retry_block(part: RetryPromptPart) -> JsonDict:
    """Return the failed tool_result block for *part*; a text block if it belongs to no tool."""
    text = part.model_response()
    if not part.tool_name:
        return _text(text)
    block = result_block(part.tool_call_id, text)
    if text:
        block["is_error"] = True
    return block


def _content_block(content: object) -> JsonDict:
    """Return the block for one element of a content: a text, an image, a document, or opaque.

    *content* is of the user or of a tool's result.
    """
    media: JsonDict | None = None
    if isinstance(content, str):
        return _text(content)
    if isinstance(content, CachePoint):
        return opaque_block(_plain(content))  # a mark, which the model does not read
    if isinstance(content, ImageUrl):
        media = image_block(content.url)
    elif isinstance(content, DocumentUrl):
        media = document_block({"file_url": content.url})
    elif isinstance(content, UploadedFile):
        media = document_block({"file_id": content.file_id})
    elif isinstance(content, BinaryContent):
        url = f"data:{content.media_type};base64,{content.base64}"
        if content.media_type.startswith("image/"):
            media = image_block(url)
        elif content.media_type == "application/pdf":
            media = document_block({"file_data": url})
    return media or client_block(_plain(content), _name_of(content))


def _text(text: object) -> JsonDict:
    return text_or_opaque(text, text)


def _plain(part: object) -> object:
    """Return *part* as plain values without timestamps, so that equal parts give equal blocks."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return repr(part)
    fields: dict[str, object] = {}
    for dataclass_field in dataclasses.fields(part):
        name = dataclass_field.name
        if name != "timestamp" and not name.startswith("_"):
            fields[name] = getattr(part, name)
    try:
        return json.loads(as_json(fields))
    except InvalidHistory:
        return repr(fields)


def _rebuild_part(part: Any, blocks: Sequence[JsonObject]) -> Any:
    """Return a copy of *part* with *blocks* as its content, or None to remove the part.

    It is removed if no content is left, or if the content of its kind cannot be changed. A retry
    prompt becomes a failed result; a call loses its id, for which a provider would use its stored
    copy.
    """
    if not blocks:
        return None
    if isinstance(part, ToolReturnPart):
        return _rebuild_return(part, result_blocks(blocks[0].get("content")))
    if isinstance(part, RetryPromptPart):
        return ToolReturnPart(
            part.tool_name or "",
            result_text(blocks[0].get("content")),
            part.tool_call_id,
            outcome="failed",
        )
    if isinstance(part, ToolCallPart):
        arguments = blocks[0]["input"]
        args = arguments_json(arguments) if isinstance(part.args, str) else dict(arguments)
        # Without the id, for which a provider would use its stored copy.
        return dataclasses.replace(part, args=args, id=None)
    if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
        content = [element for element in part.content if _content_block(element) in blocks]
        return dataclasses.replace(part, content=content)
    return None


def _rebuild_return(part: ToolReturnPart, blocks: Sequence[JsonObject]) -> ToolReturnPart:
    """Return a copy of *part* with the texts of *blocks* and the files that are among *blocks*."""
    files = [(_content_block(file), file) for file in getattr(part, "files", None) or ()]
    content: list[Any] = []
    for block in blocks:
        if kind(block) == "tool_reference":
            continue  # the part itself has the tools that it refers to
        file_block, file = take_part(files, block)
        content.append(block_text(block) if file_block is None else file)
    if all(isinstance(element, str) for element in content):
        return dataclasses.replace(part, content="\n".join(content))
    return dataclasses.replace(part, content=content)


def _new_reply_part(block: JsonObject) -> Any:
    """Return *block* as a part of a model's reply: a call, or else its text."""
    if kind(block) == "tool_use":
        return ToolCallPart(block["name"], dict(block["input"]), block["id"])
    return TextPart(block_text(block))


def _new_content(block: JsonObject) -> Any:
    """Return *block* as content of a user message: an image, or else its text."""
    url = image_url(block)
    if url is None:
        return block_text(block)
    if ";base64," in url:
        return BinaryContent.from_data_uri(url)
    return ImageUrl(url)
