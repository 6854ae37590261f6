"""An HTTP client for the openai SDK that sends the context instead of the history, in one line.

``AsyncOpenAI(http_client=ctxpipe_client(pipeline, session_id="job-42"))``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..wire.conversations import SessionName
from ..wire.exchange import Adapter
from ..wire.versions import Versions, load

VERSIONS = Versions("openai", "openai", "1.60.0", "3.57.0")
_sdk = load("openai", VERSIONS, {"AsyncOpenAI": ["http_client"]})

# When the SDK is there: it decides what is sent with.
from .http_client import make_client, make_sync_client  # noqa: E402

if TYPE_CHECKING:
    import httpx2
    from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

    from ..pipeline import ContextPipeline
    from ..storage import JournalStorage

__all__ = ["ctxpipe_client", "ctxpipe_sync_client"]

NAMES = ("prompt_cache_key", "metadata.session_id", "user")


def ctxpipe_client(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    observation: str = "",
    summary_model: str | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
    **settings: Any,
) -> DefaultAsyncHttpxClient:
    """An HTTP client for ``openai.AsyncOpenAI`` that sends the context instead of the history.

    It rewrites ``messages`` of every chat completion and the list ``input`` of every response,
    plain or streamed, learns from the reply's usage, and after "too long" asks once more with a
    context shortened by force. Where nothing is to be done, the request is sent as it came, byte
    for byte; an error of ours is logged and the original request is sent. What the provider keeps
    is left alone: a request with ``previous_response_id``, ``conversation`` or a plain text, and
    all up to a ``compaction`` item.

    *session_id* names the conversation, or finds its name in the request's body. Without it the
    name is that of `conversation`, or the body's ``prompt_cache_key``, ``metadata.session_id`` or
    ``user``. Conversations of one name, or of none, are told apart by their histories; each has a
    *journal* of its own. A user's message of a chat that begins with *observation* is read as the
    result of a call.

    Summaries are asked for in the form and at the URL of the request that needs them, with its
    headers: by *summary_model*, else by SUMMARY_MODEL where the environment sets it, else by the
    request's own model. *transport* is what sends, by default the one that the SDK would use,
    without the environment's proxies. *settings* are those of ``openai.DefaultAsyncHttpxClient``.

    Raises SettingsError for an invalid setting, and, when this module is imported,
    AdapterUnavailable without an SDK of the expected form.
    """
    adapter = Adapter(
        pipeline,
        session_id,
        journal,
        NAMES,
        observation=observation,
        summary_model=summary_model,
    )
    return make_client(_sdk, adapter, transport, settings)


def ctxpipe_sync_client(
    pipeline: ContextPipeline,
    *,
    session_id: SessionName | None = None,
    journal: JournalStorage | None = None,
    observation: str = "",
    summary_model: str | None = None,
    transport: httpx2.BaseTransport | None = None,
    **settings: Any,
) -> DefaultHttpxClient:
    """As `ctxpipe_client`, for ``openai.OpenAI``, from any thread. Raises SettingsError."""
    adapter = Adapter(
        pipeline,
        session_id,
        journal,
        NAMES,
        observation=observation,
        summary_model=summary_model,
    )
    return make_sync_client(_sdk, adapter, transport, settings)
