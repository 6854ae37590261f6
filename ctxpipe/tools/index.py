"""A full-text index of what one session has stored: an SQLite database in memory, kept as bytes."""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ..edits.passages import passages, query_terms, space_words

IS_SUPPORTED: bool = hasattr(sqlite3.Connection, "deserialize")
"""Whether this SQLite can read a database from memory."""
MOST_CHARS = 50_000_000
"""More characters are not taken into an index; it is twice as large."""

_FORM = b"ctxpipe index 2\n"
_BEGINNING_BYTES = len(_FORM) + 4
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
    """A passage that was found: the *name* of its text, its *offset* there, and what it says."""

    name: str
    offset: int
    text: str


def open_index(content: bytes, names: Iterable[str]) -> Index:
    """The index in *content*, of texts called *names*, which may lack some.

    An empty one where it is damaged, of another version, or has a text that is none of these.
    """
    data = memoryview(content)[_BEGINNING_BYTES:]
    if content[:_BEGINNING_BYTES] == _beginning(data):
        index = Index(data)
        if index.names.issubset(names):
            return index
        index.close()
    return Index()


class Index:
    """The index in the database *data*, or an empty one."""

    def __init__(self, data: memoryview | None = None) -> None:
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        if data is None:
            self._database.executescript(_TABLES)
        else:
            self._database.deserialize(data)
        sizes = dict(self._database.execute("select name, chars from texts").fetchall())
        self.names: set[str] = set(sizes)
        """The texts that are in it."""
        self._chars = sum(sizes.values())

    def close(self) -> None:
        """Free its memory."""
        self._database.close()

    def content(self) -> bytes:
        """What `open_index` makes an equal one of."""
        data = self._database.serialize()
        return _beginning(data) + data

    @property
    def is_full(self) -> bool:
        """Whether it takes nothing more in."""
        return self._chars >= MOST_CHARS

    def add(self, texts: Mapping[str, str]) -> None:
        """Take in *texts* by their names, of which those that end in ``.json`` are records."""
        with self._database:
            for name, text in texts.items():
                chars = 0 if self.is_full else len(text)
                self.names.add(name)
                self._chars += chars
                self._database.execute("insert into texts values (?, ?)", (name, chars))
                found = passages(text[:chars], is_record=name.endswith(".json"))
                for offset, passage in found:
                    row = (name, offset, passage)
                    added = self._database.execute("insert into passages values (?, ?, ?)", row)
                    words = (added.lastrowid, space_words(passage))
                    self._database.execute("insert into words (rowid, text) values (?, ?)", words)

    def find(self, query: str) -> Iterator[Hit]:
        """The passages with words of *query*, those with most and the rarest ones first.

        After these come those with words that begin so, and those that have its words anywhere,
        some of them once more.
        """
        terms = map(space_words, query_terms(query))
        phrases = ['"{}"'.format(term.replace('"', '""')) for term in terms]
        for ending in ("", "*"):
            match = " OR ".join(phrase + ending for phrase in phrases) or '""'
            yield from map(Hit._make, self._database.execute(_MATCHES, (match,)))
        words = set(re.findall(r"\w+", query.lower()))
        for hit in map(Hit._make, self._database.execute(_ALL)):
            text = hit.text.lower()
            if any(word in text for word in words):
                yield hit


def _beginning(data: memoryview | bytes) -> bytes:
    """What comes before the *data* of a database: its form, and its check sum."""
    return _FORM + zlib.crc32(data).to_bytes(4, "big")
