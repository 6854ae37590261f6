"""A callback for LiteLLM, the SDK and the proxy.

``litellm.callbacks = [ctxpipe_logger(pipeline)]``
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

from .._values import JsonDict, JsonObject
from ..messages import field
from ..pipeline import ContextPipeline
from ..providers.refusals import as_refusal
from ..storage import JournalStorage
from ..wire.conversations import SessionName
from ..wire.exchange import Exchange, Mount
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

    Raises SettingsError for an invalid setting, and, when this module is imported,
    MountUnavailable without a LiteLLM of the expected form.
    """
    return _Logger(Mount(pipeline, session_id, journal, NAMES))


class _Logger(CustomLogger):
    def __init__(self, mount: Mount) -> None:
        super().__init__()
        self._mount = mount
        self._pending: OrderedDict[str, Exchange] = OrderedDict()

    async def async_pre_call_deployment_hook(
        self, kwargs: JsonDict, call_type: Any
    ) -> JsonDict | None:
        """The call with the context; None leaves it as it is."""
        known = FORMATS.get(getattr(call_type, "value", call_type))
        if known is None or not known.is_shapeable(kwargs, kwargs.get(known.key)):
            return None
        exchange = await self._mount.begin(
            known.codec,
            kwargs[known.key],
            known.arguments(kwargs),
            request=kwargs,
            state_id=known.state_id(kwargs),
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
            response = field(response_obj, "response") or response_obj
            exchange.remember(field(response, "output"))
            usage = field(response_obj, "usage")
            is_own = exchange.dialog.codec is MESSAGES.codec
            if not is_own or field(usage, "prompt_tokens") is not None:
                usage = openai_usage(usage)
            exchange.learn(usage)

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
            await exchange.refused(as_refusal(error))
