"""A check that a session can call a client, before anything is sent or paid."""

from __future__ import annotations

from .callables import is_async
from .errors import SettingsError
from .settings import excerpt

__all__ = ["check_client"]

_WANTED = "give anthropic.AsyncAnthropic(), or its .beta for requests with betas="


def check_client(client: object) -> None:
    """Raise SettingsError unless *client* can be an async client of Anthropic."""
    name = type(client).__name__
    if isinstance(client, type):
        raise SettingsError(f"client is {excerpt(client)}; {_WANTED}")
    messages = getattr(client, "messages", None)
    create = getattr(messages, "create", None)
    if callable(create):
        if _blocks(create):
            raise SettingsError(f"client is {name}, which would block the event loop; {_WANTED}")
        return
    if callable(getattr(client, "create", None)) and callable(getattr(client, "stream", None)):
        raise SettingsError(f"client is {name}, the messages of a client; give the client itself")
    raise SettingsError(f"client is {name}, which has no messages.create; {_WANTED}")


def _blocks(function: object) -> bool:
    """Whether *function* belongs to Anthropic's SDK and is not async.

    Of a function from elsewhere it cannot be known.
    """
    module = getattr(function, "__module__", None)
    if not isinstance(module, str) or not module.startswith("anthropic."):
        return False
    return not is_async(function)
