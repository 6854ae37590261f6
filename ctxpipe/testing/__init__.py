"""Scripted APIs on 127.0.0.1, for tests of agents: Anthropic's Messages, OpenAI's chat completions
and responses, Gemini's contents.

A test connects the real SDK to such a server. It needs no mock, no access to the internet and no
valid key:

    async with MessagesServer([answer_with(tool_use("ls", {})), "done"]) as server:
        client = anthropic.AsyncAnthropic(base_url=server.url, api_key="test", max_retries=0)
        ...
    assert not server.refused

``server.requests`` has every request as a `Received`, ``server.refused`` those of them that broke a
rule of the API.

Needs the extra ``ctxpipe[testing]``; starlette and uvicorn are imported when a server starts.

`storage_conformance` checks a storage of your own against the contract. `assert_survives` checks
that the texts which govern an agent stay in its context.
"""

from typing import TYPE_CHECKING

from .._lazy import import_on_use
from .billing import Usage
from .conformance import storage_conformance
from .gemini_server import GeminiServer
from .openai_server import OpenAIServer
from .replies import (
    Answer,
    Cut,
    Failure,
    Hang,
    Reply,
    answer_with,
    overloaded,
    prompt_too_long,
    rate_limited,
    redacted_thinking,
    refusal,
    server_error,
    text,
    thinking,
    tool_use,
)
from .rules import Model, RequestBody, problems
from .scripted import MissingExtra, Received, Script, ScriptExhausted
from .server import MessagesServer
from .storage import ContractBroken, StorageCheck
from .survival import TextsLost, assert_survives, assert_survives_async

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Answer",
    "ContractBroken",
    "Cut",
    "Failure",
    "GeminiServer",
    "Hang",
    "MessagesServer",
    "MissingExtra",
    "Model",
    "OpenAIServer",
    "Received",
    "Reply",
    "RequestBody",
    "Script",
    "ScriptExhausted",
    "StorageCheck",
    "TextsLost",
    "Usage",
    "answer_with",
    "assert_survives",
    "assert_survives_async",
    "overloaded",
    "problems",
    "prompt_too_long",
    "rate_limited",
    "redacted_thinking",
    "refusal",
    "server_error",
    "storage_conformance",
    "text",
    "thinking",
    "tool_use",
]

# A tool call is run by ctxpipe.answer; one of the two replaced the other in a star import.
_RENAMED = {"answer": "ctxpipe.testing.answer_with"}
__getattr__: "Callable[[str], object]" = import_on_use(__name__, {}, renamed=_RENAMED)
