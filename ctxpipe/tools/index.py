"""A full-text index of what one session has stored: an SQLite database in memory, kept as bytes."""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from math import log
from typing import NamedTuple

from ..edits.passages import passages, query_terms

IS_SUPPORTED: bool = sqlite3.sqlite_version_info >= (3, 34)
"""Whether this SQLite has what is needed: its tokenizer of three characters."""
MOST_CHARS = 50_000_000
"""More characters are not taken into an index; it is five times as large."""

_FORM = b"ctxpipe index 1\n"
_BEGINNING_BYTES = len(_FORM) + 4
_TABLES = """
create table texts (name text primary key, chars integer);
create virtual table passages using fts5(
    text, name unindexed, offset unindexed, tokenize = 'trigram'
);
"""
_MATCHES = "select rowid, rank from passages where passages match ? order by rank limit 200"


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
                rows = ((passage.text, name, passage.offset) for passage in found)
                self._database.executemany("insert into passages values (?, ?, ?)", rows)

    def find(self, query: str) -> Iterator[Hit]:
        """The passages with terms of *query*, those with most and the rarest ones first."""
        terms = query_terms(query)
        scores: dict[int, float] = {}
        if terms.indexed:
            quoted = ['"{}"'.format(term.replace('"', '""')) for term in terms.indexed]
            for row, rank in self._database.execute(_MATCHES, (" OR ".join(quoted),)):
                scores[row] = -rank
        if terms.short:
            self._add_scores(scores, terms.short)
        for row in sorted(scores, key=scores.__getitem__, reverse=True):
            found = "select name, offset, text from passages where rowid = ?"
            yield Hit(*self._database.execute(found, (row,)).fetchone())

    def _add_scores(self, scores: dict[int, float], terms: list[str]) -> None:
        """Add to *scores* those of *terms* that are too short for the index: all is read."""
        rows = self._database.execute("select rowid, text from passages").fetchall()
        texts = [(row, text.lower()) for row, text in rows]
        for term in terms:
            found = [row for row, text in texts if term in text]
            weight = log(1 + len(texts) / (1 + len(found)))  # the rarer, the more it says
            for row in found:
                scores[row] = scores.get(row, 0.0) + weight


def _beginning(data: memoryview | bytes) -> bytes:
    """What comes before the *data* of a database: its form, and its check sum."""
    return _FORM + zlib.crc32(data).to_bytes(4, "big")
