"""A full-text index of the texts of one session: an SQLite database, in a file or in memory.

A file grows with the texts that are added: nothing else in it is read or written again. Several
processes may use it at the same time, under SQLite's locks. SQLite's own protection against a crash
would be a second file with parts of the texts, which could outlive a deletion. Instead the file is
marked while it is changed. A file whose mark was left by a killed process is not used any more, and
the texts are indexed again.
"""

from __future__ import annotations

import re
import sqlite3
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import quote

from ..stages.reading.passages import passages, query_terms, space_words

IS_SUPPORTED: bool = hasattr(sqlite3.Connection, "deserialize")
"""True if this SQLite can load a database from memory."""
MAX_INDEX_CHARS = 50_000_000
"""Maximum number of characters in an index, which takes about two bytes for each."""

_FORM = 4
"""Value of `user_version` in a complete index of this version of the tables."""
_CHANGING = -1
"""Value of `user_version` while a process changes the index."""
_LOCK_SECONDS = 5.0
"""Time to wait for another process that adds texts to the same file."""
_TABLES = """
create table if not exists batches (names text, chars integer);
create table if not exists passages (name text, offset integer, text text, sum integer);
create virtual table if not exists words using fts5(text, content = '', tokenize = 'unicode61');
"""
_ALL = "select name, offset, passages.text, sum from passages"
_MATCHES = f"""
{_ALL} join words on words.rowid = passages.rowid where words match ? order by rank limit 200
"""


class Hit(NamedTuple):
    """A matching passage: the *name* of its file, its *offset* in the file, and its *text*."""

    name: str
    offset: int
    text: str


class Index:
    """A full-text index in the file *path*, which may be empty; in memory if *path* is None.

    An index in memory begins with the *content* of an earlier one. Every method may raise
    `sqlite3.Error`: the file is damaged, of another version, or locked for too long. The texts must
    then be added to a new index.
    """

    def __init__(self, path: str | None = None, content: bytes = b"") -> None:
        location = ":memory:" if path is None else f"file:{quote(path)}?mode=rw"
        self._database = sqlite3.connect(
            location,
            timeout=_LOCK_SECONDS,
            isolation_level=None,
            check_same_thread=False,
            uri=path is not None,
        )
        try:
            if content:
                self._database.deserialize(content)
            # Other files, such as one to sort rows in, would outlive a deletion too.
            self._database.execute("pragma journal_mode = memory")
            self._database.execute("pragma temp_store = memory")
            self._database.execute("pragma synchronous = normal")
            self.names: set[str] = set()
            """Names of the texts in the index."""
            self._chars = 0
            self._last_batch = 0
            self._read_new_names()
        except BaseException:
            self._database.close()
            raise

    def _read_new_names(self) -> None:
        """Read which texts the index has, in addition to those that were read before.

        Raises `sqlite3.DatabaseError` if the index is not usable.
        """
        [form] = self._database.execute("pragma user_version").fetchone()
        if form not in (0, _FORM):
            raise sqlite3.DatabaseError(f"the index has form {form}, not {_FORM}")
        if form == 0:
            return
        batches = "select rowid, names, chars from batches where rowid > ?"
        for row, names, chars in self._database.execute(batches, (self._last_batch,)).fetchall():
            self.names.update(names.split("/"))  # which no name contains
            self._chars += chars
            self._last_batch = row

    def close(self) -> None:
        """Close the file, or free the memory of the index."""
        self._database.close()

    def content(self) -> bytes:
        """Return the index as bytes, from which an equal one in memory can be made."""
        return self._database.serialize() if self.names else b""

    @property
    def is_full(self) -> bool:
        """True if the index has reached its maximum size and ignores further texts."""
        return self._chars >= MAX_INDEX_CHARS

    def add(self, texts: Mapping[str, str]) -> None:
        """Add those of *texts*, by file name, that the index does not have.

        Files that end in ``.json`` are split as JSON records.
        """
        with self._change():
            new_names = [name for name in texts if name not in self.names]
            chars = 0
            for name in new_names:
                added_chars = self._add_text(name, texts[name])
                chars += added_chars
                self._chars += added_chars
            if new_names:
                row = ("/".join(new_names), chars)
                cursor = self._database.execute("insert into batches values (?, ?)", row)
                self._last_batch = cursor.lastrowid or 0
                self.names.update(new_names)

    def _add_text(self, name: str, text: str) -> int:
        """Add the *text* called *name*; return its characters, 0 if the index is full."""
        if self.is_full:
            return 0
        for offset, passage in passages(text, is_record=name.endswith(".json")):
            hit = Hit(name, offset, passage)
            row = (*hit, _check_sum(hit))
            cursor = self._database.execute("insert into passages values (?, ?, ?, ?)", row)
            words = (cursor.lastrowid, space_words(passage))
            self._database.execute("insert into words (rowid, text) values (?, ?)", words)
        return len(text)

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Lock the index for the block, and mark it as incomplete meanwhile."""
        self._database.execute("pragma locking_mode = exclusive")
        self._database.execute("begin exclusive")
        self._read_new_names()  # another process may have added texts
        self._database.execute(f"pragma user_version = {_CHANGING}")
        self._database.execute("commit")  # on the disk before anything else changes
        self._database.execute("begin")
        for statement in _TABLES.strip().split("\n"):
            self._database.execute(statement)
        yield
        self._database.execute("commit")
        self._database.execute(f"pragma user_version = {_FORM}")
        # The lock is released by the next access, in the other mode.
        self._database.execute("pragma locking_mode = normal")
        self._database.execute("pragma user_version").fetchone()

    def find(self, query: str) -> Iterator[Hit]:
        """Yield the passages with words of *query*: those with the most and rarest words first.

        Passages with words that begin like a word of *query* follow, then passages that contain one
        anywhere. A passage can be yielded more than once.
        """
        if not self.names:
            return
        terms = [space_words(term) for term in query_terms(query)]
        phrases = ['"{}"'.format(term.replace('"', '""')) for term in terms]
        for ending in ("", "*"):
            match = " OR ".join(phrase + ending for phrase in phrases) or '""'
            yield from self._hits(_MATCHES, match)
        words = set(re.findall(r"\w+", query.lower()))
        for hit in self._hits(_ALL):
            text = hit.text.lower()
            if any(word in text for word in words):
                yield hit

    def _hits(self, statement: str, *values: str) -> Iterator[Hit]:
        """Yield the rows of *statement*. Raises `sqlite3.DatabaseError` for a damaged row."""
        for name, offset, text, check_sum in self._database.execute(statement, values):
            hit = Hit(name, offset, text)
            if _check_sum(hit) != check_sum:
                raise sqlite3.DatabaseError("the index is damaged")
            yield hit


def _check_sum(hit: Hit) -> int:
    """Return the check sum by which a damaged row is noticed."""
    return zlib.crc32(f"{hit.name}\n{hit.offset}\n{hit.text}".encode())
