"""A callback for LiteLLM, the SDK and the proxy.

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
# LiteLLM asks the network for prices when it is imported, unless it is told not to.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
load(
    "litellm.integrations.custom_logger",
    VERSIONS,
    {"CustomLogger.async_pre_call_deployment_hook": ["kwargs", "call_type"]},
)

import litellm  # noqa: E402
from litellm.integrations.custom_logger import CustomLogger  # noqa: E402

__all__ = ["ctxpipe_logger"]

MAX_PENDING = 1_000  # calls whose reply has not come
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
    summary_model: str | None = None,
) -> CustomLogger:
    """A ``CustomLogger`` that has every model called with the context instead of the history.

    One hook serves ``acompletion``, ``aresponses`` and ``anthropic.messages.acreate``, of any
    provider, plain and streamed, in the SDK and in the proxy; the synchronous calls of LiteLLM have
    no hook. It learns from the usage. LiteLLM has no hook that sends once more: after "too long"
    the next attempt, be it LiteLLM's own retry or the caller's, is sent with a context shortened by
    force. An error of ours is logged, and the messages are sent as they are.

    *session_id* names the conversation, or finds its name in the call's arguments; without it the
    name is that of `conversation`, or ``litellm_session_id``, ``metadata.session_id``,
    ``metadata.user_id``, ``prompt_cache_key`` or ``user``. Conversations of one name, or of none,
    are told apart by their histories; each has a *journal* of its own.

    Summaries are asked for by ``litellm.acompletion`` at the provider of the call that needs them,
    with its URL and its credentials: by *summary_model*, else by SUMMARY_MODEL where the
    environment sets it, else by the call's own model. A name never leads to another provider.

    Raises SettingsError for an invalid setting, and, when this module is imported,
    AdapterUnavailable without a LiteLLM of the expected form.
    """
    return _Logger(Adapter(pipeline, session_id, journal, NAMES, summary_model=summary_model))


# The agent's own model ----------------------------------------------------------------------------

REPEATED = (
    *("allowed_openai_params", "api_base", "api_key", "api_version", "base_url", "extra_headers"),
    *("headers", "litellm_credential_name", "organization", "region_name", "service_tier"),
    *("ssl_verify", "timeout", "user"),
)
"""Arguments of a call that say where it goes, how, and for whom."""
OF_PROVIDERS = ("aws_", "azure_", "vertex_", "watsonx_")
"""How such arguments begin that only some providers have."""
LIMITED = frozenset({"anthropic", "bedrock", "vertex_ai"})
"""Providers whose answers LiteLLM limits by itself."""


@dataclass(frozen=True, kw_only=True)
class LiteLLMModel(AgentModel):
    """The model of a call, at *provider*; *arguments* are those that each call to it repeats."""

    provider: str
    arguments: JsonObject = field(default_factory=dict, repr=False)

    async def ask(self, prompt: str, *, model: str | None, max_tokens: int) -> AgentAnswer:
        """Ask it, without LiteLLM's own retries."""
        name = (model or self.name or "").removeprefix(f"{self.provider}/")
        limit = {"max_tokens": max_tokens} if self.provider in LIMITED else {}
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


def _lent(kwargs: JsonObject, summary_model: str | None) -> LiteLLMModel | None:
    """The model that a call with *kwargs* goes to; None where they do not say."""
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
    except Exception:  # noqa: BLE001  LiteLLM does not know it, and says so when it is called
        return None
    arguments = {
        key: value
        for key, value in kwargs.items()
        if value is not None and (key in REPEATED or key.startswith(OF_PROVIDERS))
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
        """The call with the context; None leaves it as it is."""
        known = FORMATS.get(getattr(call_type, "value", call_type))
        if known is None or not known.is_shapeable(kwargs, kwargs.get(known.key)):
            return None
        exchange = await self._adapter.begin(
            known.codec,
            kwargs[known.key],
            known.arguments(kwargs),
            request=kwargs,
            state_id=known.state_id(kwargs),
            agent_model=_lent(kwargs, self._adapter.summary_model),
        )
        if exchange is None:
            return None
        name = kwargs.get("litellm_call_id")
        if isinstance(name, str):
            self._pending[name] = exchange
            while len(self._pending) > MAX_PENDING:
                self._pending.popitem(last=False)
        options = exchange.result.request_options if known is MESSAGES else {}
        if not exchange.is_changed and not options:
            return None
        return {**kwargs, known.key: exchange.items, **options}

    # What became of it ----------------------------------------------------------------------------

    def _find(self, kwargs: JsonObject) -> Exchange | None:
        return self._pending.pop(str(kwargs.get("litellm_call_id")), None)

    async def async_log_success_event(
        self,
        kwargs: JsonObject,
        response_obj: Any,
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
    ) -> None:
        """Learn from the usage."""
        exchange = self._find(kwargs)
        if exchange is not None:
            response = value_at(response_obj, "response") or response_obj
            exchange.remember(value_at(response, "output"))
            usage = value_at(response_obj, "usage")
            is_own = exchange.dialog.codec is MESSAGES.codec
            if not is_own or value_at(usage, "prompt_tokens") is not None:
                usage = openai_usage(usage)
            exchange.calibrate(usage)

    async def async_log_failure_event(
        self,
        kwargs: JsonObject,
        response_obj: Any,  # noqa: ARG002
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
    ) -> None:
        """After "too long", shorten the context for the next attempt."""
        exchange = self._find(kwargs)
        error = kwargs.get("exception")
        if exchange is not None and isinstance(error, BaseException):
            await exchange.shorten(as_refusal(error))
