"""Run the conversations of other APIs and frameworks through a session.

A codec converts the items of one form of conversation to messages and back. An `Exchange` shapes
one request. An `Adapter` has the settings and the conversations of one client or framework.
"""

from typing import TYPE_CHECKING

from .._lazy import import_on_use
from .codec import Codec, MessagesCodec, Reading, Side
from .conversations import Conversations, Dialog, SessionName, conversation, conversation_name
from .exchange import Adapter, Exchange, HttpExchange
from .formats import CHAT, MESSAGES, RESPONSES, Format, Gemini
from .gemini import GeminiCodec
from .openai_chat import ChatCodec
from .openai_responses import ResponsesCodec
from .translation import Translation, Units

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "CHAT",
    "MESSAGES",
    "RESPONSES",
    "Adapter",
    "ChatCodec",
    "Codec",
    "Conversations",
    "Dialog",
    "Exchange",
    "Format",
    "Gemini",
    "GeminiCodec",
    "HttpExchange",
    "MessagesCodec",
    "Reading",
    "ResponsesCodec",
    "SessionName",
    "Side",
    "Translation",
    "Units",
    "conversation",
    "conversation_name",
]

_RENAMED = {"Mount": "ctxpipe.wire.Adapter", "Shaper": "ctxpipe.wire.Adapter"}
__getattr__: "Callable[[str], object]" = import_on_use(__name__, {}, renamed=_RENAMED)
