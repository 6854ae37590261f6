"""A capability for pydantic-ai's agents.

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
from ..messages import as_json, kind
from ..providers.refusals import as_refusal
from ..summarizers import AgentAnswer, AgentModel, SummaryRefused
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
    image_block,
    image_url,
    join_texts,
    opaque_block,
    result_block,
    result_blocks,
    result_text,
    says,
    sort_blocks,
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
    """A capability that has the model called with the context instead of the history.

    What is sent is prepared for each attempt and never persisted: ``result.all_messages()`` holds
    every message as it was. It works for every model, plain and streamed, learns from the usage,
    and after "too long" has the model called once more with a context shortened by force. An error
    of ours is logged, and the messages are sent as they are.

    *session_id* names the conversation, or finds its name in the ``RunContext``; without it the
    name is that of `conversation`, or the run's ``conversation_id``. Conversations of one name,
    such as agents that a tool runs, or of none, are told apart by their histories; each has a
    *journal* of its own.

    Summaries are written by the agent's own model, with its client and its credentials.
    *summary_model* is another model for them, or the name of another one of the same provider;
    without it the name is SUMMARY_MODEL where the environment sets it.

    Raises SettingsError for an invalid setting, and, when this module is imported,
    AdapterUnavailable without a pydantic-ai of the expected form.
    """

    def __init__(
        self,
        pipeline: ContextPipeline,
        *,
        session_id: SessionName | None = None,
        journal: JournalStorage | None = None,
        summary_model: str | Model | None = None,
    ) -> None:
        self._chosen = summary_model if isinstance(summary_model, Model) else None
        name = None if isinstance(summary_model, Model) else summary_model
        self._adapter = Adapter(pipeline, session_id, journal, summary_model=name)

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:  # noqa: ARG002
        """What one run needs to remember."""
        return _Run(self._adapter, self._chosen)


class _Run(AbstractCapability[Any]):
    """One run, and the exchange of its last request."""

    def __init__(self, adapter: Adapter, summary_model: Model | None) -> None:
        self._adapter = adapter
        self._summary_model = summary_model
        self._exchange: Exchange | None = None
        self._is_shorter = False  # it was refused, and has a shorter request to send

    async def for_run(self, ctx: RunContext[Any]) -> AbstractCapability[Any]:  # noqa: ARG002
        return self

    async def prepare_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Send the context."""
        if not self._is_shorter:
            self._exchange = await self._begin(ctx, request_context)
        self._is_shorter = False
        if self._exchange is None or not self._exchange.is_changed:
            return request_context
        return dataclasses.replace(request_context, messages=list(self._exchange.items))

    async def on_model_request_error(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, error: Exception
    ) -> ModelResponse:
        """Ask once more where the prompt was too long; any other error is raised."""
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
        """Learn from the usage."""
        del ctx, request_context
        if self._exchange is not None:
            self._exchange.calibrate(_usage(response))
        return response

    async def _begin(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> Exchange | None:
        conversation = getattr(ctx, "conversation_id", None)
        parameters = request_context.model_request_parameters
        parts = getattr(parameters, "instruction_parts", None) or ()
        system = [text_block(part.content) for part in parts if says(part.content)]
        arguments = {
            "system": system or None,
            "tools": [_description(tool) for tool in parameters.function_tools],
            "request": {"model": getattr(request_context.model, "model_name", None)},
        }
        return await self._adapter.begin(
            CODEC,
            request_context.messages,
            arguments,
            request=ctx,
            names=[conversation],
            agent_model=self._lent(request_context),
        )

    def _lent(self, request_context: ModelRequestContext) -> PydanticModel:
        """The model for summaries that was chosen, or else the agent's own."""
        agents = request_context.model
        chosen = self._summary_model
        settings = getattr(request_context, "model_settings", None) or {}
        return PydanticModel(
            model=chosen or agents,
            settings={name: settings[name] for name in ROUTING if name in settings},
            name=(chosen or agents).model_name,
            summary_model=chosen.model_name if chosen else self._adapter.summary_model,
            api=agents.system,
        )


def _description(tool: Any) -> dict[str, object]:
    return {
        "name": tool.name,
        "description": tool.description or "",
        "parameters": tool.parameters_json_schema,
    }


# The agent's own model ----------------------------------------------------------------------------

ROUTING = (
    *("extra_headers", "service_tier", "openai_service_tier", "openai_store", "openai_user"),
    *("anthropic_metadata", "anthropic_service_tier", "openrouter_provider"),
)
"""Settings of a request that say where, how and for whom it is processed."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PydanticModel(AgentModel):
    """A *model* of pydantic-ai, that of the agent or one that was chosen for summaries.

    It is asked with these *settings*, beside its own.
    """

    model: Model = dataclasses.field(repr=False)
    settings: JsonObject = dataclasses.field(default_factory=dict, repr=False)

    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Ask it, outside of the agent's run: no capability takes part."""
        chosen = self.model
        if model is not None and model != self.name:
            chosen = _with_name(chosen, model.removeprefix(f"{chosen.system}:"))
        settings: Any = {**self.settings, **_room(chosen, max_tokens)}
        messages = [ModelRequest(parts=[UserPromptPart(prompt)])]
        reply = await model_request(chosen, messages, model_settings=settings)
        text = "".join([part.content for part in reply.parts if isinstance(part, TextPart)])
        return AgentAnswer(text, reply.finish_reason, _usage(reply), reply.model_name or "")


def _with_name(model: Model, name: str) -> Model:
    """A copy of *model*, with its client, that asks the model *name*. Raises SummaryRefused."""
    changed = copy.copy(model)
    wrapped = getattr(model, "wrapped", None)
    if isinstance(wrapped, Model):
        vars(changed)["wrapped"] = _with_name(wrapped, name)
    else:
        vars(changed)["_model_name"] = name
    vars(changed).pop("profile", None)  # it may be cached, of the old name
    if changed.model_name != name:
        raise SummaryRefused(
            f"{type(model).__name__} cannot be asked for another model by its name;"
            " give summary_model= a model of pydantic-ai"
        )
    return changed


def _room(model: Model, max_tokens: int) -> dict[str, int]:
    """The setting that gives an answer room, where *model* has a limit that is too low.

    Anthropic's API requires a limit, for which pydantic-ai takes 4,096. Thinking counts, too.
    """
    settings: JsonObject = {**(model.settings or {})}
    limit = settings.get("max_tokens")
    if limit is None and model.system == "anthropic":
        limit = 4096
    thinking = settings.get("anthropic_thinking") or {}
    needed = max_tokens + (thinking.get("budget_tokens") or 0)
    return {"max_tokens": needed} if limit is not None and limit < needed else {}


def _usage(response: ModelResponse) -> dict[str, int] | None:
    billed = response.usage
    return usage(
        billed.input_tokens,
        read=billed.cache_read_tokens,
        written=billed.cache_write_tokens,
        output=billed.output_tokens,
    )


# Messages -----------------------------------------------------------------------------------------


class PydanticCodec(Codec):
    """pydantic-ai's messages; a request may hold results and words of the user at once."""

    def is_summary(self, item: Item) -> bool:
        """By one of its parts."""
        return any(isinstance(part, CompactionPart) for part in getattr(item, "parts", ()))

    def read(self, item: Item) -> Reading:
        """*item* as blocks."""
        if not isinstance(item, ModelRequest | ModelResponse):
            return self.read_unknown(item, type(item).__name__)
        is_reply = isinstance(item, ModelResponse)
        unknown = opaque_block if is_reply else client_block
        groups = _groups(item.parts)
        blocks = [block for group in groups for block in _group_blocks(group, unknown)]
        if is_reply:
            return Reading("assistant", blocks)
        has_result = any(kind(block) == "tool_result" for block in blocks)
        return Reading("result" if has_result else "user", blocks)

    def rebuild(self, item: Item, blocks: Sequence[JsonObject]) -> Item:
        """A copy of *item* that says *blocks*; its other parts are the same objects."""
        waiting = [(block, block) for block in blocks]
        unknown = opaque_block if isinstance(item, ModelResponse) else client_block
        parts: list[Any] = []
        for group in _groups(item.parts):
            old = _group_blocks(group, unknown)
            kept = [take_part(waiting, block)[1] for block in old]
            if kept == old:
                parts += group
                continue
            parts += _rebuild_group(group, [block for block in kept if block is not None])
        if waiting:
            make = TextPart if isinstance(item, ModelResponse) else UserPromptPart
            parts.append(make(join_texts(block for block, _ in waiting)))
        return dataclasses.replace(item, parts=parts)

    def new(self, role: str, blocks: Sequence[JsonObject]) -> list[Item]:
        """Messages that say *blocks*."""
        if role == "assistant":
            return [ModelResponse(parts=[_new_reply_part(block) for block in blocks])]
        if role == "system":
            return [ModelRequest(parts=[SystemPromptPart(join_texts(blocks))])]
        results, _, spoken = sort_blocks(blocks)
        parts: list[Any] = []
        for block in results:
            text = result_text(block.get("content"))
            parts.append(ToolReturnPart("tool", text, block["tool_use_id"]))
        said = [_new_content(block) for block in spoken]
        if said and all(isinstance(part, str) for part in said):
            parts.append(UserPromptPart("\n".join(said)))
        elif said:
            parts.append(UserPromptPart(said))
        return [ModelRequest(parts=parts)]


CODEC = PydanticCodec()

TOOL_SEARCH = "tool-search"
CAPABILITY_LOAD = "capability-load"
"""What pydantic-ai calls the kinds of the tools that load other tools."""

REASONING_FIELDS = frozenset({"content", "reasoning", "reasoning_content"})
"""Fields of chat completions that pydantic-ai reads thinking from."""


# Parts --------------------------------------------------------------------------------------------

BESIDE_CHARS = 2_000
"""What a request says in words after a tool's return is that tool's, if it is at least so long.

It is the content of a ``ToolReturn``, which pydantic-ai sends beside the result as if the user said
it. A person who writes while tools run writes less.
"""


def _groups(parts: Sequence[Any]) -> list[list[Any]]:
    """Return *parts* one by one, but a tool's return together with what it gives beside it."""
    groups: list[list[Any]] = []
    for part in parts:
        follows_return = bool(groups) and isinstance(groups[-1][0], ToolReturnPart)
        if follows_return and _is_beside(part):
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups


def _is_beside(part: Any) -> bool:
    if not isinstance(part, UserPromptPart):
        return False
    contents = [part.content] if isinstance(part.content, str) else part.content
    texts = [content for content in contents if isinstance(content, str)]
    if len(texts) < len(contents):
        return False
    return sum([len(text) for text in texts]) >= BESIDE_CHARS


def _group_blocks(group: Sequence[Any], unknown: Callable[..., JsonDict]) -> list[JsonDict]:
    """Return the blocks of *group*: those of its part, or one result with all texts of a tool."""
    first, *beside = group
    blocks = _part_blocks(first, unknown)
    if not beside:
        return blocks
    [block] = blocks
    content = result_blocks(block["content"])
    for part in beside:
        content += _part_blocks(part, unknown)
    return [{**block, "content": content}]


def _rebuild_group(group: Sequence[Any], blocks: Sequence[JsonObject]) -> list[Any]:
    """Return the parts of *group* that say *blocks*."""
    first, *beside = group
    if not beside or not blocks:
        changed = _rebuild_part(first, blocks)
        return [] if changed is None else [changed]
    content = result_blocks(blocks[0].get("content"))
    staying: list[Any] = []
    for part in beside:
        own = _part_blocks(part, client_block)
        if all(block in content for block in own):
            content = [block for block in content if block not in own]
            staying.append(part)
    return [_rebuild_return(first, content), *staying]


def _part_blocks(part: Any, unknown: Callable[..., JsonDict]) -> list[JsonDict]:
    """Return the blocks of *part*; *unknown* makes that of a part of which nothing is known."""
    match part:
        case ToolReturnPart():
            return [_result_block(part)]
        case RetryPromptPart():
            return [_retry_block(part)]
        case UserPromptPart():
            content = [part.content] if isinstance(part.content, str) else part.content
            return list(map(_content_block, content))
        case TextPart() | SystemPromptPart():
            return [_text(part.content)] if part.content else []
        case ToolCallPart():
            block = use_block(part.tool_call_id, part.tool_name, arguments_object(part.args))
        case ThinkingPart():
            block = thinking_block(part.content or None, _proof(part))
        case _ if unknown is client_block:
            block = client_block(_plain(part), _name_of(part))
        case _ if getattr(part, "tool_kind", None) == TOOL_SEARCH:
            block = tool_search_block(_plain(part), _name_of(part), _loaded_tools(part))
        case _:
            block = opaque_block(_plain(part))
    return [block]


def _name_of(part: object) -> str:
    """Return what pydantic-ai calls the kind of *part*, else the name of its class."""
    names = (getattr(part, name, None) for name in ("part_kind", "kind"))
    return next((name for name in names if isinstance(name, str)), type(part).__name__)


def _proof(part: ThinkingPart) -> str | None:
    """Return what proves *part* to be the model's; None where its API signs no thinking."""
    # Its id is then the name of the field that held it.
    return part.signature or (None if part.id in REASONING_FIELDS else part.id)


def _loaded_tools(part: object) -> list[str]:
    """Return the names of the tools that *part*, the return of a search or loader, has loaded."""
    tool_kind = getattr(part, "tool_kind", None)
    if tool_kind == TOOL_SEARCH:  # a search that has failed has no such field
        return [str(tool["name"]) for tool in getattr(part, "discovered_tools", ())]
    if tool_kind == CAPABILITY_LOAD and isinstance(getattr(part, "content", None), Mapping):
        return [str(getattr(part, "tool_name", ""))]
    return []


def _result_block(part: ToolReturnPart) -> JsonDict:
    text = part.model_response_str()
    files = list(getattr(part, "files", None) or ())
    content: Any = list(map(_content_block, [text, *files])) if files else text
    references = [tool_reference(name) for name in _loaded_tools(part)]
    if references:
        content = [*result_blocks(content), *references]
    block = result_block(part.tool_call_id, content)
    if part.outcome in ("failed", "denied", "retried") and text and not files:
        block["is_error"] = True
    return block


def _retry_block(part: RetryPromptPart) -> JsonDict:
    text = part.model_response()
    if not part.tool_name:
        return _text(text)
    block = result_block(part.tool_call_id, text)
    if text:
        block["is_error"] = True
    return block


def _content_block(content: object) -> JsonDict:
    """Return the block of one *content* of what the user says, or of a tool's result."""
    media: JsonDict | None = None
    if isinstance(content, str):
        return _text(content)
    if isinstance(content, CachePoint):
        return opaque_block(_plain(content))  # a mark, and nothing that the model reads
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
    """*part* in plain values, without times, so that equal parts make equal blocks."""
    if not dataclasses.is_dataclass(part) or isinstance(part, type):
        return repr(part)
    names = [field.name for field in dataclasses.fields(part)]
    kept = [name for name in names if name != "timestamp" and not name.startswith("_")]
    fields = {name: getattr(part, name) for name in kept}
    try:
        return json.loads(as_json(fields))
    except InvalidHistory:
        return repr(fields)


def _rebuild_part(part: Any, blocks: Sequence[JsonObject]) -> Any:
    """*part* that says *blocks*; None where nothing of it is left."""
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
        # By its id a provider would take its stored copy.
        return dataclasses.replace(part, args=args, id=None)
    if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
        content = [own for own in part.content if _content_block(own) in blocks]
        return dataclasses.replace(part, content=content)
    return None


def _rebuild_return(part: ToolReturnPart, blocks: Sequence[JsonObject]) -> ToolReturnPart:
    """A copy of *part* that says *blocks*, with those of its files that are among them."""
    files = [(_content_block(file), file) for file in getattr(part, "files", None) or ()]
    content: list[Any] = []
    for block in blocks:
        if kind(block) == "tool_reference":
            continue  # it stands for what the part itself says
        said, file = take_part(files, block)
        content.append(block_text(block) if said is None else file)
    has_files = any(not isinstance(one, str) for one in content)
    return dataclasses.replace(part, content=content if has_files else "\n".join(content))


def _new_reply_part(block: JsonObject) -> Any:
    if kind(block) == "tool_use":
        return ToolCallPart(block["name"], dict(block["input"]), block["id"])
    return TextPart(block_text(block))


def _new_content(block: JsonObject) -> Any:
    url = image_url(block)
    if url is None:
        return block_text(block)
    return BinaryContent.from_data_uri(url) if ";base64," in url else ImageUrl(url)
