"""A full-text index of the texts of one session: an SQLite database in memory, saved as bytes."""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..stages.reading.passages import passages, query_terms, space_words

IS_SUPPORTED: bool = hasattr(sqlite3.Connection, "deserialize")
"""True if this SQLite can load a database from memory."""
MAX_INDEX_CHARS = 50_000_000
"""Maximum number of characters in an index, which takes about two bytes for each."""

_VERSION = b"ctxpipe index 3\n"
_HEADER_BYTES = len(_VERSION) + 4
_TABLES = """
create table texts (name text primary key, chars integer);
create table passages (name text, offset integer, text text);
create virtual table words using fts5(text, content = '', tokenize = 'unicode61');
"""
_ALL = "select name, offset, passages.text from passages"
_MATCHES = f"""
{_ALL} join words on words.rowid = passages.rowid where words match ? order by rank limit 200
"""


class Hit(NamedTuple):
    """A matching passage: the *name* of its file, its *offset* in the file, and its *text*."""

    name: str
    offset: int
    text: str


def open_index(content: bytes, names: Iterable[str]) -> Index:
    """Return the index in *content*. It may lack some of the texts called *names*.

    Returns an empty index if *content* is damaged or of another version, or if the index contains a
    text that is not among *names*.
    """
    data = memoryview(content)[_HEADER_BYTES:]
    if content[:_HEADER_BYTES] == _header(data):
        index = Index(data)
        if index.names.issubset(names):
            return index
        index.close()
    return Index()


class Index:
    """A full-text index, loaded from the database *data*, or empty without it."""

    def __init__(self, data: memoryview | None = None) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        if data is None:
            self._database.executescript(_TABLES)
        else:
            self._database.deserialize(data)
        sizes = dict(self._database.execute("select name, chars from texts").fetchall())
        self.names: set[str] = set(sizes)
        """Names of the texts in the index."""
        self._chars = sum(sizes.values())

    def close(self) -> None:
        """Free the memory of the index."""
        self._database.close()

    def content(self) -> bytes:
        """Return the index as bytes, from which `open_index` creates an equal one."""
        data = self._database.serialize()
        return _header(data) + data

    @property
    def is_full(self) -> bool:
        """True if the index has reached its maximum size and ignores further texts."""
        return self._chars >= MAX_INDEX_CHARS

    def add(self, texts: Mapping[str, str]) -> None:
        """Add *texts*, by file name. Files that end in ``.json`` are split as JSON records."""
        with self._database:
            for name, text in texts.items():
                chars = 0 if self.is_full else len(text)
                self.names.add(name)
                self._chars += chars
                self._database.execute("insert into texts values (?, ?)", (name, chars))
                is_record = name.endswith(".json")
                for offset, passage in passages(text[:chars], is_record=is_record):
                    row = (name, offset, passage)
                    cursor = self._database.execute("insert into passages values (?, ?, ?)", row)
                    words = (cursor.lastrowid, space_words(passage))
                    self._database.execute("insert into words (rowid, text) values (?, ?)", words)

    def find(self, query: str) -> Iterator[Hit]:
        """Yield the passages with words of *query*: those with the most and rarest words first.

        Passages with words that begin like a word of *query* follow, then passages that contain one
        anywhere. A passage can be yielded more than once.
        """
        terms = [space_words(term) for term in query_terms(query)]
        phrases = ['"{}"'.format(term.replace('"', '""')) for term in terms]
        for ending in ("", "*"):
            match = " OR ".join(phrase + ending for phrase in phrases) or '""'
            for row in self._database.execute(_MATCHES, (match,)):
                yield Hit(*row)
        words = set(re.findall(r"\w+", query.lower()))
        for row in self._database.execute(_ALL):
            hit = Hit(*row)
            text = hit.text.lower()
            if any(word in text for word in words):
                yield hit


def _header(data: memoryview | bytes) -> bytes:
    """Return the bytes before the *data* of a database: the version and a check sum."""
    return _VERSION + zlib.crc32(data).to_bytes(4, "big")
