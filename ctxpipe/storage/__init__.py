"""Where text goes when it leaves the context."""

from .local import Cleaned, LocalStorage
from .protocol import Archive, Page, TextReader, TextWriter

__all__ = ["Archive", "Cleaned", "LocalStorage", "Page", "TextReader", "TextWriter"]
