"""One conversation: what it was, what is sent of it, and what is written down."""

from .session import Session

__all__ = ["Session"]
