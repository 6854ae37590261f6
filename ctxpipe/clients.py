"""Whether a client can be asked by an async session, known before anything is sent or paid."""

from __future__ import annotations

from .callables import is_async
from .errors import SettingsError
from .settings import excerpt

__all__ = ["check_client"]

_WANTED = "give anthropic.AsyncAnthropic(), or its .beta for requests with betas="


def check_client(client: object) -> None:
    """Raise SettingsError unless *client* can be an async client of Anthropic's."""
    name = type(client).__name__
    if isinstance(client, type):
        raise SettingsError(f"client is {excerpt(client)}; {_WANTED}")
    create = getattr(getattr(client, "messages", None), "create", None)
    if callable(create):
        if _blocks(create):
            raise SettingsError(f"client is {name}, which would block the event loop; {_WANTED}")
        return
    if callable(getattr(client, "create", None)) and callable(getattr(client, "stream", None)):
        raise SettingsError(f"client is {name}, the messages of a client; give the client itself")
    raise SettingsError(f"client is {name}, which has no messages.create; {_WANTED}")


def _blocks(function: object) -> bool:
    """Whether *function* is of Anthropic's SDK, and not async.

    Of anybody else's it cannot be known.
    """
    module = getattr(function, "__module__", None)
    return isinstance(module, str) and module.startswith("anthropic.") and not is_async(function)
