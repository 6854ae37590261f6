"""Where text goes when it leaves the context."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

# A storage is imported when it is first asked for: a hook that writes one file needs one of them.
_NAMES = {
    ".files": "FileReader FileText LocalFiles",
    ".local": "Cleaned LocalStorage",
    ".memory": "MemoryStorage",
    ".objects": "ObjectStorage",
    ".postgres": "PostgresJournal",
    ".protocol": "Archive JournalStorage Page TextReader TextWriter",
    ".redis": "RedisJournal",
    ".secrets": "is_secret",
    ".sqlite": "SQLiteJournal",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
