"""A callback for LiteLLM, the SDK and the proxy.

``litellm.callbacks = [ctxpipe_logger(pipeline)]``
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..messages.identity import digest
from ..refusals import as_refusal
from ..session.client import is_asked_by_a_stage
from ..session.conversation import Conversation
from ..wire.conversations import Conversations, SessionName, conversation_name, texts_at
from ..wire.openai_chat import ChatCodec
from ..wire.openai_responses import ResponsesCodec
from ..wire.shaping import NOT_LEARNT, NOT_SHORTENED, UNSHAPED, Shaped, Shaper, log_errors, warn
from ..wire.usage import openai_usage
from ..wire.versions import Versions, ensure_hook, load

VERSIONS = Versions("litellm", "litellm", "1.83.0", "1.83.0")
# LiteLLM asks the network for prices when it is imported, unless it is told not to.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
_logger = getattr(load("litellm.integrations.custom_logger", VERSIONS), "CustomLogger", None)
_hook = getattr(_logger, "async_pre_call_deployment_hook", None)
ensure_hook(VERSIONS, _hook, ["kwargs", "call_type"])

from litellm.integrations.custom_logger import CustomLogger  # noqa: E402

if TYPE_CHECKING:
    from ..pipeline import ContextPipeline
    from ..reports import Result
    from ..storage import JournalStorage

__all__ = ["ctxpipe_logger"]

MAX_PENDING = 1_000  # calls whose reply has not come
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
    ``metadata.user_id``, ``prompt_cache_key`` or ``user``. Conversations of one name are
    distinguished by their first message; *journal* follows the one that came first.

    Raises SettingsError for an invalid setting, and, when this module is imported,
    MountUnavailable without a LiteLLM of the expected form.
    """
    return _Logger(pipeline, session_id, journal)


@dataclass(frozen=True, slots=True)
class _Messages:
    """A call of the Messages API: what was sent, and what it was made of."""

    session: Conversation
    history: list[Any]
    result: Result
    arguments: Mapping[str, Any]


class _Logger(CustomLogger):
    def __init__(
        self,
        pipeline: ContextPipeline,
        session_id: SessionName | None,
        journal: JournalStorage | None,
    ) -> None:
        super().__init__()
        self._session_id = session_id
        self._chat = Shaper(pipeline, ChatCodec(), session_id=session_id, journal=journal)
        self._responses = Shaper(pipeline, ResponsesCodec(), session_id=session_id, journal=journal)
        self._sessions: Conversations[Conversation] = Conversations(pipeline, _itself, journal)
        self._pending: OrderedDict[str, Shaped | _Messages] = OrderedDict()

    async def async_pre_call_deployment_hook(
        self, kwargs: dict[str, Any], call_type: Any
    ) -> dict[str, Any] | None:
        """The call with the context; None leaves it as it is."""
        kind = getattr(call_type, "value", call_type)
        if kind == "acompletion":
            return await self._shape(self._chat, kwargs, "messages")
        if kind in ("aresponses", "responses"):
            if kwargs.get("previous_response_id") or kwargs.get("conversation"):
                return None
            return await self._shape(self._responses, kwargs, "input")
        if kind == "anthropic_messages":
            return await self._shape_messages(kwargs)
        return None

    async def _shape(
        self, shaper: Shaper, kwargs: dict[str, Any], key: str
    ) -> dict[str, Any] | None:
        items = kwargs.get(key)
        if not isinstance(items, list) or not items:
            return None
        shaped = await shaper.shape(
            items,
            request=kwargs,
            found=tuple(texts_at(kwargs, *NAMES)),
            system=kwargs.get("instructions"),
            tools=kwargs.get("tools"),
            model=kwargs.get("model"),
        )
        if shaped is None:
            return None
        self._remember(kwargs, shaped)
        return {**kwargs, key: shaped.items} if shaped.is_changed else None

    async def _shape_messages(self, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        messages = kwargs.get("messages")
        if is_asked_by_a_stage() or not isinstance(messages, list) or not messages:
            return None
        names = ("thinking", "model", "extra_headers")
        arguments: dict[str, Any] = {
            "system": kwargs.get("system"),
            "tools": kwargs.get("tools"),
            "request": {name: kwargs.get(name) for name in names},
        }
        try:
            name = conversation_name(self._session_id, kwargs, texts_at(kwargs, *NAMES))
            session = self._sessions.of(name, digest(messages[0]))
            result = await session.run(list(messages), **arguments)
        except Exception as error:  # noqa: BLE001  logged by `warn`
            warn(UNSHAPED, error)
            return None
        self._remember(kwargs, _Messages(session, messages, result, arguments))
        if not result.changed and result.messages == messages:
            return None
        return {**kwargs, "messages": result.messages, **result.request_options}

    # What became of it ----------------------------------------------------------------------------

    def _remember(self, kwargs: Mapping[str, Any], sent: Shaped | _Messages) -> None:
        name = kwargs.get("litellm_call_id")
        if isinstance(name, str):
            self._pending.pop(name, None)
            self._pending[name] = sent
            while len(self._pending) > MAX_PENDING:
                self._pending.popitem(last=False)

    def _find_shaped(self, kwargs: Mapping[str, Any]) -> Shaped | _Messages | None:
        return self._pending.pop(str(kwargs.get("litellm_call_id")), None)

    async def async_log_success_event(
        self,
        kwargs: Mapping[str, Any],
        response_obj: Any,
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
    ) -> None:
        """Learn from the usage."""
        sent = self._find_shaped(kwargs)
        with log_errors(NOT_LEARNT):
            billed = getattr(response_obj, "usage", None)
            if isinstance(response_obj, Mapping):
                billed = response_obj.get("usage")
            if isinstance(sent, Shaped):
                self._chat.observe(sent, openai_usage(billed))
            elif sent is not None:
                read = openai_usage(billed) if hasattr(billed, "prompt_tokens") else billed
                sent.session.learn(read, sent.result)

    async def async_log_failure_event(
        self,
        kwargs: Mapping[str, Any],
        response_obj: Any,  # noqa: ARG002
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
    ) -> None:
        """After "too long", shorten the context for the next attempt."""
        sent = self._find_shaped(kwargs)
        error = kwargs.get("exception")
        refusal = as_refusal(error) if isinstance(error, BaseException) else None
        if sent is None or refusal is None:
            return
        if isinstance(sent, Shaped):
            await self._chat.recover(sent, refusal)
            return
        try:
            await sent.session.recover(refusal, list(sent.history), sent.result, **sent.arguments)
        except Exception as failure:  # noqa: BLE001  logged by `warn`
            warn(NOT_SHORTENED, failure)


def _itself(conversation: Conversation) -> Conversation:
    return conversation
