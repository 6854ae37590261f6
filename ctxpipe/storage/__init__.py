"""Where text goes when it leaves the context."""

from .files import FileReader, FileText, LocalFiles
from .local import Cleaned, LocalStorage
from .memory import MemoryStorage
from .protocol import Archive, JournalStorage, Page, TextReader, TextWriter
from .secrets import is_secret

__all__ = [
    "Archive",
    "Cleaned",
    "FileReader",
    "FileText",
    "JournalStorage",
    "LocalFiles",
    "LocalStorage",
    "MemoryStorage",
    "Page",
    "TextReader",
    "TextWriter",
    "is_secret",
]
