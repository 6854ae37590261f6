"""Search for texts by their words: in a context, in the files that it names, or nowhere.

A line is found if its words follow each other, whatever is between them: blanks, line breaks,
punctuation or markup. So a line that was indented, quoted or wrapped is still found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import PurePosixPath

from ..errors import CtxpipeError
from ..messages import Message
from ..placeholders.notes import note_of
from ..stages.archive import parse_archive
from ..stages.reading.atoms import message_texts

_WORD = re.compile(r"\w+")

CUT_LINE = 160
"""Length from which a line may have been cut, so that its last word may be incomplete."""


def words_of(text: str) -> str:
    """Return the words of *text*, with a blank before and after each."""
    return f" {' '.join(_WORD.findall(text))} "


def has_words(line: str) -> bool:
    """Return True if *line* has a word, so that it can be looked for."""
    return _WORD.search(line) is not None


def needle_of(line: str) -> str:
    """Return the words of *line* as `words_of` of a text that has the line contains them."""
    words = words_of(line)
    return words if len(line) < CUT_LINE else words.rstrip(" ")


class WordIndex:
    """The words of messages, each read once, and the lines that were looked for in them.

    Messages must not change after they were looked at.
    """

    def __init__(self) -> None:
        self._words: dict[int, tuple[Message, str]] = {}
        self._found: dict[tuple[int, str], bool] = {}

    def words(self, message: Message) -> str:
        """Return the words of all texts of *message*."""
        key = id(message)
        if key not in self._words:
            # The message is stored too, so that no other one gets its id.
            self._words[key] = (message, words_of("\n".join(message_texts(message))))
        return self._words[key][1]

    def is_in(self, needle: str, message: Message) -> bool:
        """Return True if *message* contains *needle*, which `needle_of` returned."""
        key = (id(message), needle)
        if key not in self._found:
            self._found[key] = needle in self.words(message)
        return self._found[key]

    def is_in_any(self, needle: str, messages: Sequence[Message]) -> bool:
        """Return True if one of *messages* contains *needle*, the newest being looked at first."""
        return any(self.is_in(needle, message) for message in reversed(messages))


def line_shares(
    needles: Sequence[str],
    context: Sequence[Message],
    words: WordIndex,
    is_in_file: Callable[[str], bool],
) -> tuple[float, float]:
    """Return the shares of *needles* that are in *context*, and that are only in a file.

    *needles* are what `needle_of` returns. *is_in_file* is called for those not in the context.
    """
    in_context = 0
    in_file = 0
    for needle in needles:
        if words.is_in_any(needle, context):
            in_context += 1
        elif is_in_file(needle):
            in_file += 1
    return in_context / len(needles), in_file / len(needles)


# Files --------------------------------------------------------------------------------------------


@cache
def _key_pattern(folder: str) -> re.Pattern[str]:
    """Return the pattern of the keys of files in *folder*, the folder of a session."""
    return re.compile(re.escape(folder) + r"/[^\s\"'`<>|;&)\]]+")


def file_keys_in(message: Message, folder: str) -> set[str]:
    """Return the keys of the files below *folder* that *message* names.

    *folder* is the folder of a session. A note about earlier steps names the file of each step.
    """
    pattern = _key_pattern(folder)
    keys: set[str] = set()
    for text in message_texts(message):
        keys.update(pattern.findall(text))
    note = note_of(message)
    if note is not None:
        for number in range(note.first, note.last + 1):
            keys.add(f"{folder}/{PurePosixPath(note.path(number)).name}")
    return keys


class FileIndex:
    """The words of the files that a conversation has written, each read once.

    *texts* has the text of each file by its key, *folder* is the folder of the session.
    """

    def __init__(self, words: WordIndex, texts: Mapping[str, str], folder: str) -> None:
        self._index = words
        self._texts = texts
        self._folder = folder
        self._messages: dict[str, list[Message]] = {}
        self._named: dict[int, tuple[Message, frozenset[str]]] = {}

    def file_with(self, needle: str, context: Sequence[Message]) -> str | None:
        """Return the key of a file with *needle* that *context* names, directly or by another file.

        Returns None if there is no such file. *needle* is what `needle_of` returns.
        """
        for key in self._reachable(context):
            if self._index.is_in_any(needle, self._file(key)):
                return key
        return None

    def _reachable(self, context: Sequence[Message]) -> Iterator[str]:
        """Yield the key of each file that *context* names, then of those that these files name."""
        seen: set[str] = set()
        pending: list[Message] = list(context)
        while pending:
            names: set[str] = set()
            for message in pending:
                names |= self._names(message)
            pending = []
            for key in sorted(names - seen):
                if key in self._texts:
                    yield key
                    pending += self._file(key)
            seen |= names

    def _names(self, message: Message) -> frozenset[str]:
        """Return the keys of the files that *message* names."""
        key = id(message)
        if key not in self._named:
            self._named[key] = (message, frozenset(file_keys_in(message, self._folder)))
        return self._named[key][1]

    def _file(self, key: str) -> list[Message]:
        """Return the file *key* as messages: those of an archive, or one with its whole text."""
        if key not in self._messages:
            text = self._texts[key]
            messages: list[Message] = [{"role": "user", "content": text}]
            if key.endswith(".json"):
                with suppress(CtxpipeError):  # a text of the agent whose name has this suffix
                    messages = list(parse_archive(text, key))
            self._messages[key] = messages
        return self._messages[key]
