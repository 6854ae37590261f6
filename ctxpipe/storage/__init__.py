"""Storages for texts that leave the context, for archives, and for journals of sessions."""

from typing import TYPE_CHECKING

from .._lazy import import_on_use

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cleanup import Cleaned
    from .files import FileReader, FileText, LocalFiles
    from .generations import Generation, delete_sessions
    from .local import LocalStorage
    from .memory import MemoryStorage
    from .object_journals import ObjectJournal
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
    "Generation",
    "JournalStorage",
    "LocalFiles",
    "LocalStorage",
    "MemoryStorage",
    "ObjectJournal",
    "ObjectStorage",
    "Page",
    "PostgresJournal",
    "RedisJournal",
    "SQLiteJournal",
    "TextReader",
    "TextWriter",
    "delete_sessions",
    "is_secret",
]

# A storage is imported at its first use: a hook that writes one file needs only one of them.
_NAMES = {
    ".files": "FileReader FileText LocalFiles",
    ".generations": "Generation delete_sessions",
    ".cleanup": "Cleaned",
    ".local": "LocalStorage",
    ".memory": "MemoryStorage",
    ".object_journals": "ObjectJournal",
    ".objects": "ObjectStorage",
    ".postgres": "PostgresJournal",
    ".protocol": "Archive JournalStorage Page TextReader TextWriter",
    ".redis": "RedisJournal",
    ".secrets": "is_secret",
    ".sqlite": "SQLiteJournal",
}
__getattr__: "Callable[[str], object]" = import_on_use(__name__, _NAMES)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
