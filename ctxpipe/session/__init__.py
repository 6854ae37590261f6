"""Sessions: the memory of a conversation between turns, and many sessions of a server."""

from .session import Session

__all__ = ["Session"]
