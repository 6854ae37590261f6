"""Where text goes when it leaves the context."""

from .files import FileReader, FileText, LocalFiles
from .local import Cleaned, LocalStorage
from .memory import MemoryStorage
from .objects import ObjectStorage
from .postgres import PostgresJournal
from .protocol import Archive, JournalStorage, Page, TextReader, TextWriter
from .redis import RedisJournal
from .secrets import is_secret
from .sqlite import SQLiteJournal

__all__ = [
    "Archive",
    "Cleaned",
    "FileReader",
    "FileText",
    "JournalStorage",
    "LocalFiles",
    "LocalStorage",
    "MemoryStorage",
    "ObjectStorage",
    "Page",
    "PostgresJournal",
    "RedisJournal",
    "SQLiteJournal",
    "TextReader",
    "TextWriter",
    "is_secret",
]
