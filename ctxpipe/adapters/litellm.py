"""Adapter for LiteLLM, the SDK and the proxy: a callback.

``litellm.callbacks = [ctxpipe_logger(pipeline)]``
"""

from __future__ import annotations

import os
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from .._values import JsonDict, JsonObject
from ..messages import field as value_at
from ..pipeline import ContextPipeline
from ..providers.refusals import as_refusal
from ..storage import JournalStorage
from ..summarizers import AgentAnswer, AgentModel
from ..wire.conversations import SessionName
from ..wire.exchange import Adapter, Exchange
from ..wire.formats import CHAT, MESSAGES, RESPONSES, Format
from ..wire.usage import openai_usage
from ..wire.versions import Versions, load

VERSIONS = Versions("litellm", "litellm", "1.83.0", "1.83.0")
# Without this variable the import of LiteLLM requests a price list from the network.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
load(
    "litellm.integrations.custom_logger",
    VERSIONS,
    {"CustomLogger.async_pre_call_deployment_hook": ["kwargs", "call_type"]},
)

import litellm  # noqa: E402
from litellm.integrations.custom_logger import CustomLogger  # noqa: E402

__all__ = ["ctxpipe_logger"]

MAX_PENDING = 1_000
"""Maximum number of remembered calls that have no reply yet."""
FORMATS: dict[str, Format] = {
    "acompletion": CHAT,
    "aresponses": RESPONSES,
    "responses": RESPONSES,
    "anthropic_messages": MESSAGES,
}
"""The calls of LiteLLM whose requests are shaped."""
NAMES = (
    "litellm_session_id",
    "litellm_metadata.session_id",
    "metadata.session_id",
    "metadata.user_id",
    "prompt_cache_key",
    "user",
)


def ctxpipe_logger(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    cache_breakpoints: int = 0,
    summary_model: str | None = None,
) -> CustomLogger:
    """Return a ``CustomLogger`` that replaces the history of each asynchronous call by the context.

    It works for ``acompletion``, ``aresponses`` and ``anthropic.messages.acreate`` with every
    provider, plain and streamed, in the SDK and in the proxy. Synchronous calls of LiteLLM are sent
    unchanged, because LiteLLM has no hook for them. The logger calibrates token counts by the
    usage. LiteLLM has no hook that repeats a request: after a refusal because of the length the
    next attempt, by LiteLLM's own retry or by the caller, is sent with a shorter context. After an
    internal error, which is logged, the original messages are sent.

    *session_id* is the name of the conversation, or a function from the arguments of the call to
    the name. Without it, the name comes from an enclosing ``with conversation(name):`` (see
    `ctxpipe.wire.conversation`), else from ``litellm_session_id``, ``metadata.session_id``,
    ``metadata.user_id``, ``prompt_cache_key`` or ``user``. Conversations with the same name, or
    without a name, are distinguished by their histories. *journal* stores each conversation
    separately.

    *cache_breakpoints* is the maximum number of prompt-cache breakpoints to add where they save
    most: before and after what a turn has rewritten, and after the system prompt. Claude and
    OpenAI's models from GPT-5.6 on have breakpoints; requests to other models get none.

    Summaries are requested with ``litellm.acompletion`` from the provider of the call, with its URL
    and its credentials. Their model is *summary_model*, else the environment variable
    SUMMARY_MODEL, else the model of the call. A model of another provider cannot be used: also a
    name that begins with one, such as "openai/…", is requested from the provider of the call.

    Raises SettingsError if a setting is invalid. The import of this module raises
    AdapterUnavailable if LiteLLM is missing or has an unexpected form.
    """
    adapter = Adapter(
        pipeline, session_id, journal, NAMES, cache_breakpoints, summary_model=summary_model
    )
    return _Logger(adapter)


# The agent's model --------------------------------------------------------------------------------

REPEATED = (
    *("allowed_openai_params", "api_base", "api_key", "api_version", "base_url", "extra_headers"),
    *("headers", "litellm_credential_name", "organization", "region_name", "service_tier"),
    *("ssl_verify", "timeout", "user"),
)
"""Arguments of a call that determine where, how and for whom it is processed."""
PROVIDER_PREFIXES = ("aws_", "azure_", "vertex_", "watsonx_")
"""Beginnings of further such arguments, which only some providers have."""
LIMITED_PROVIDERS = frozenset({"anthropic", "bedrock", "vertex_ai"})
"""Providers for whose answers LiteLLM sets a default limit, which may be too low."""


@dataclass(frozen=True, kw_only=True)
class LiteLLMModel(AgentModel):
    """The model of a call, at *provider*. Its questions repeat the *arguments* of the call."""

    provider: str
    arguments: JsonObject = field(default_factory=dict, repr=False)

    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Send *prompt* to *model*, or to the agent's own without one; return the answer.

        LiteLLM does not retry. *max_tokens* is sent only to providers that need the limit.
        """
        name = (model or self.name or "").removeprefix(f"{self.provider}/")
        limit = {"max_tokens": max_tokens} if self.provider in LIMITED_PROVIDERS else {}
        reply: Any = await litellm.acompletion(
            model=name,
            messages=[{"role": "user", "content": prompt}],
            custom_llm_provider=self.provider,
            num_retries=0,
            max_retries=0,
            **limit,
            **self.arguments,
        )
        choice = reply.choices[0]
        text = choice.message.content or ""
        usage = openai_usage(value_at(reply, "usage"))
        return AgentAnswer(text, choice.finish_reason, usage, reply.model or "")


def _agent_model(kwargs: JsonObject, summary_model: str | None) -> LiteLLMModel | None:
    """Return the model of a call with *kwargs*, None if they do not determine it."""
    name = kwargs.get("model") or getattr(kwargs.get("litellm_logging_obj"), "model", None)
    if not isinstance(name, str):
        return None
    try:
        _, provider, _, _ = litellm.get_llm_provider(
            name,
            kwargs.get("custom_llm_provider"),
            kwargs.get("api_base") or kwargs.get("base_url"),
            kwargs.get("api_key"),
        )
    except Exception:  # noqa: BLE001  an unknown model; LiteLLM reports it in the call itself
        return None
    arguments = {
        key: value
        for key, value in kwargs.items()
        if value is not None and (key in REPEATED or key.startswith(PROVIDER_PREFIXES))
    }
    return LiteLLMModel(
        name=name,
        summary_model=summary_model,
        api=provider,
        provider=provider,
        arguments=arguments,
    )


# The callback -------------------------------------------------------------------------------------


class _Logger(CustomLogger):
    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self._adapter = adapter
        self._pending: OrderedDict[str, Exchange] = OrderedDict()

    async def async_pre_call_deployment_hook(
        self, kwargs: JsonDict, call_type: Any
    ) -> JsonDict | None:
        """Return the arguments of the call with the context; None leaves the call unchanged."""
        wire_format = FORMATS.get(getattr(call_type, "value", call_type))
        if wire_format is None:
            return None
        if not wire_format.is_shapeable(kwargs, kwargs.get(wire_format.key)):
            return None
        exchange = await self._adapter.begin(
            wire_format.codec,
            kwargs[wire_format.key],
            wire_format.arguments(kwargs),
            request=kwargs,
            state_id=wire_format.state_id(kwargs),
            agent_model=_agent_model(kwargs, self._adapter.summary_model),
        )
        if exchange is None:
            return None
        name = kwargs.get("litellm_call_id")
        if isinstance(name, str):
            self._pending[name] = exchange
            while len(self._pending) > MAX_PENDING:
                self._pending.popitem(last=False)
        options = exchange.result.request_options if wire_format is MESSAGES else {}
        if not exchange.is_changed and not options:
            return None
        return {**kwargs, wire_format.key: exchange.items, **options}

    # The outcome of the call ----------------------------------------------------------------------

    def _pop_exchange(self, kwargs: JsonObject) -> Exchange | None:
        return self._pending.pop(str(kwargs.get("litellm_call_id")), None)

    async def async_log_success_event(
        self,
        kwargs: JsonObject,
        response_obj: Any,
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
    ) -> None:
        """Calibrate token counts by the usage of the reply in *response_obj*.

        Calls that were sent unshaped are ignored. The items of the reply are remembered.
        """
        exchange = self._pop_exchange(kwargs)
        if exchange is None:
            return
        response = value_at(response_obj, "response") or response_obj
        exchange.remember(value_at(response, "output"))
        usage = value_at(response_obj, "usage")
        is_messages_call = exchange.dialog.codec is MESSAGES.codec
        if not is_messages_call or value_at(usage, "prompt_tokens") is not None:
            usage = openai_usage(usage)
        exchange.calibrate(usage)

    async def async_log_failure_event(
        self,
        kwargs: JsonObject,
        response_obj: Any,  # noqa: ARG002
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
    ) -> None:
        """Shorten the context for the next attempt after a refusal because of the length."""
        exchange = self._pop_exchange(kwargs)
        error = kwargs.get("exception")
        if exchange is not None and isinstance(error, BaseException):
            await exchange.shorten(as_refusal(error))
