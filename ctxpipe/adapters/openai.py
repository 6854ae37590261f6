"""Adapter for the openai SDK: an HTTP client that sends the context instead of the history.

``AsyncOpenAI(http_client=ctxpipe_client(pipeline, session_id="job-42"))``
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..wire.conversations import SessionName
from ..wire.exchange import Adapter
from ..wire.versions import Versions, load

VERSIONS = Versions("openai", "openai", "1.60.0", "3.57.0")
_sdk = load("openai", VERSIONS, {"AsyncOpenAI": ["http_client"]})

# After the import of the SDK, which determines the HTTP library.
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
    cache_breakpoints: int = 0,
    summary_model: str | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
    **settings: Any,
) -> DefaultAsyncHttpxClient:
    """Return an HTTP client for ``openai.AsyncOpenAI`` that sends the context.

    The client replaces the ``messages`` of every chat completion and the list ``input`` of every
    response, plain or streamed. It calibrates token counts by the usage of the reply, and after a
    refusal because of the length it sends a shorter context once. A request that needs no change is
    sent byte for byte. After an internal error, which is logged, the original request is sent.
    Three kinds of content are not changed: the history that the provider stores (requests with
    ``previous_response_id`` or ``conversation``), an ``input`` that is a plain text, and everything
    up to a compaction item.

    *session_id* is the name of the conversation, or a function from the request's body to the name.
    Without it, the name comes from an enclosing ``with conversation(name):`` (see
    `ctxpipe.wire.conversation`), else from the body's ``prompt_cache_key``, ``metadata.session_id``
    or ``user``. Conversations with the same name, or without a name, are distinguished by their
    histories. *journal* stores each conversation separately. *observation* is for agents without
    tool calls, whose model writes its actions as plain text and gets their outcomes as user
    messages that begin with a fixed text, such as "Observation:". With that text as *observation*,
    each reply of a chat counts as a tool call and each such message as its result, so that stages
    can offload it. The default "" switches this off.

    *cache_breakpoints* is the maximum number of prompt-cache breakpoints to add where they save
    most: before and after what a turn has rewritten, and after the system prompt. Claude and
    OpenAI's models from GPT-5.6 on have breakpoints; requests to other models get none.

    Summaries are requested in the form and at the URL of the request, with its headers. Their model
    is *summary_model*, else the environment variable SUMMARY_MODEL, else the model of the request.
    *transport* sends the requests; None selects the transport of the SDK, without the proxies of
    the environment. *settings* are further arguments of ``openai.DefaultAsyncHttpxClient``.

    Raises SettingsError if a setting is invalid. The import of this module raises
    AdapterUnavailable if the SDK is missing or has an unexpected form.
    """
    adapter = Adapter(
        pipeline,
        session_id,
        journal,
        NAMES,
        cache_breakpoints,
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
    cache_breakpoints: int = 0,
    summary_model: str | None = None,
    transport: httpx2.BaseTransport | None = None,
    **settings: Any,
) -> DefaultHttpxClient:
    """Return an HTTP client like `ctxpipe_client` for ``openai.OpenAI``.

    It may be used from any thread. Raises SettingsError if a setting is invalid.
    """
    adapter = Adapter(
        pipeline,
        session_id,
        journal,
        NAMES,
        cache_breakpoints,
        observation=observation,
        summary_model=summary_model,
    )
    return make_sync_client(_sdk, adapter, transport, settings)
