"""Conversations of other APIs and frameworks through a session, and back."""

from .codec import Codec, Reading, Side
from .conversations import Conversations, SessionName, conversation, conversation_name
from .openai_chat import ChatCodec
from .openai_responses import ResponsesCodec
from .shaping import Conversation, Shaped, Shaper
from .translation import Translation, Units

__all__ = [
    "ChatCodec",
    "Codec",
    "Conversation",
    "Conversations",
    "Reading",
    "ResponsesCodec",
    "SessionName",
    "Shaped",
    "Shaper",
    "Side",
    "Translation",
    "Units",
    "conversation",
    "conversation_name",
]
