"""Where text goes when it leaves the context."""

from .files import FileReader, FileText, LocalFiles, is_secret
from .local import Cleaned, LocalStorage
from .protocol import Archive, Page, TextReader, TextWriter

__all__ = [
    "Archive",
    "Cleaned",
    "FileReader",
    "FileText",
    "LocalFiles",
    "LocalStorage",
    "Page",
    "TextReader",
    "TextWriter",
    "is_secret",
]
