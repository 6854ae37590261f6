"""Parameters of the SDK's ``messages.create``, for type checkers and editors.

The SDK's own types have ``messages``, with another type than `Session.create`, and the type of a
TypedDict's key cannot be replaced. So the parameters are repeated here. A test compares them with
those of the newest SDK, which has no ``temperature``, ``top_k`` and ``top_p`` any more. ``stream``
is not here because it decides what `Session.create` returns: each overload states it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, Required, TypedDict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from anthropic import Timeout
    from anthropic._types import SequenceNotStr
    from anthropic.resources.beta.messages import AsyncMessages as AsyncBetaMessages
    from anthropic.resources.messages import AsyncMessages
    from anthropic.types import (
        CacheControlEphemeralParam,
        DiagnosticsParam,
        MessageCreateParamsContainerParam,
        MetadataParam,
        ModelParam,
        OutputConfigParam,
        TextBlockParam,
        ThinkingConfigParam,
        ToolChoiceParam,
        ToolUnionParam,
    )
    from anthropic.types.anthropic_beta_param import AnthropicBetaParam
    from anthropic.types.beta import (
        BetaBillingPolicyParam,
        BetaCacheControlEphemeralParam,
        BetaCompactionConfigParam,
        BetaContainerParams,
        BetaContextManagementConfigParam,
        BetaDiagnosticsParam,
        BetaFallbackCreditTokenParam,
        BetaFallbacksParam,
        BetaMessageThreadParam,
        BetaMetadataParam,
        BetaOutputConfigParam,
        BetaRequestMCPServerURLDefinitionParam,
        BetaTextBlockParam,
        BetaThinkingConfigParam,
        BetaToolChoiceParam,
        BetaToolUnionParam,
    )

    from ..messages import MessageLike
    from .open_calls import OpenCalls


class MessagesClient(Protocol):
    """Async client of the Messages API: ``AsyncAnthropic``, or the client of another cloud."""

    @property
    def messages(self) -> AsyncMessages:
        """Resource with the method ``create``."""


class BetaClient(Protocol):
    """The attribute ``beta`` of a `MessagesClient`."""

    @property
    def messages(self) -> AsyncBetaMessages:
        """Resource with the method ``create``."""


class OwnParameters(TypedDict, total=False):
    """Parameters of `Session.create` that ctxpipe reads itself, and does not pass on.

    *messages* is the complete history, or None for the history that the session keeps. The API gets
    the context that is made from it. *open_calls* decides about tool calls without results.
    *cache_breakpoints* is the number of cache breakpoints to place.
    """

    messages: Sequence[MessageLike] | None
    open_calls: OpenCalls
    cache_breakpoints: int | None


class Transport(TypedDict, total=False):
    """Parameters that control how a request is sent."""

    extra_headers: Mapping[str, str] | None
    extra_query: Mapping[str, object] | None
    extra_body: object
    timeout: float | Timeout | None


class Common(OwnParameters, Transport, total=False):
    """Parameters that ``messages.create`` has with every client."""

    max_tokens: Required[int]
    model: Required[ModelParam]
    inference_geo: str | None
    service_tier: Literal["auto", "standard_only"]
    speed: Literal["standard", "fast"] | None
    stop_sequences: SequenceNotStr[str]
    user_profile_id: str
    workspace_id: str


class Parameters(Common, total=False):
    """Parameters of ``client.messages.create``, with ctxpipe's own ``messages`` for the SDK's."""

    cache_control: CacheControlEphemeralParam | None
    container: MessageCreateParamsContainerParam | None
    diagnostics: DiagnosticsParam | None
    metadata: MetadataParam
    output_config: OutputConfigParam
    system: str | Iterable[TextBlockParam]
    thinking: ThinkingConfigParam
    tool_choice: ToolChoiceParam
    tools: Iterable[ToolUnionParam]


class BetaParameters(Common, total=False):
    """Parameters of ``client.beta.messages.create``, with ctxpipe's own ``messages``."""

    betas: list[AnthropicBetaParam]
    billing_policy: BetaBillingPolicyParam | None
    cache_control: BetaCacheControlEphemeralParam | None
    compaction: BetaCompactionConfigParam | None
    container: BetaContainerParams | str | None
    context_management: BetaContextManagementConfigParam | None
    diagnostics: BetaDiagnosticsParam | None
    fallback_credit_token: BetaFallbackCreditTokenParam | str | None
    fallbacks: BetaFallbacksParam | None
    mcp_servers: Iterable[BetaRequestMCPServerURLDefinitionParam]
    metadata: BetaMetadataParam
    output_config: BetaOutputConfigParam
    system: str | Iterable[BetaTextBlockParam]
    thinking: BetaThinkingConfigParam
    thread: BetaMessageThreadParam | None
    tool_choice: BetaToolChoiceParam
    tools: Iterable[BetaToolUnionParam]
