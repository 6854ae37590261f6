"""References of a reply to the conversation before it, and where each is now.

In the context, in a file, or nowhere.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from pathlib import PurePosixPath

from ..edits.atoms import Atom, AtomIndex, message_texts, path_atom, weight
from ..edits.views import viewed_path
from ..messages import Message, blocks, common_prefix, field, kind, tool_calls
from ..placeholders.names import session_folder
from ..placeholders.notes import note_of
from ..providers.agent_tools import COMMON_READING_TOOLS
from ..stages.archive import parse_archive
from .records import Sums


@dataclass(frozen=True, slots=True)
class Source:
    """A block of the recorded conversation.

    Where it is, what it says, and the call that it is part of, if any. *view* is the path atom of
    the file that it shows, where it is a file view.
    """

    message: int
    role: str
    text: str
    call_id: str = ""
    view: Atom | None = None


@dataclass(frozen=True, slots=True)
class Use(Sums):
    """Weights of what was used, by where it was.

    *visible* in the context; in a file whose path is visible (*pointer*); in a file view that can
    be repeated, since its path is visible (*reread*); or *lost*. *doubtful* is the part of
    *visible* that a stricter yardstick does not count.
    """

    visible: float = 0.0
    pointer: float = 0.0
    reread: float = 0.0
    lost: float = 0.0
    doubtful: float = 0.0

    @property
    def total(self) -> float:
        """The weight of everything used."""
        return self.visible + self.pointer + self.reread + self.lost

    @property
    def recall(self) -> float:
        """The share that was in the context; 1 when nothing was used."""
        return self._share(self.visible)

    @property
    def strict_recall(self) -> float:
        """The share that was in the context beyond doubt."""
        return self._share(self.visible - self.doubtful)

    @property
    def with_reread(self) -> float:
        """The share in the context, one reading call away, or in a second look at the same file.

        If the file is still the same.
        """
        return self._share(self.total - self.lost)

    def _share(self, amount: float) -> float:
        return amount / self.total if self.total else 1.0


class Past:
    """The recorded conversation so far: which block holds which atom."""

    def __init__(self, index: AtomIndex) -> None:
        self.sources: list[Source] = []
        self.index = index
        self._holders: dict[Atom, list[int]] = {}  # oldest first
        self._views: dict[str, Atom | None] = {}  # by the id of the call
        self._length = 0

    def learn(self, messages: Iterable[Message]) -> None:
        """Take in the next *messages*."""
        for message in messages:
            for call in tool_calls([message]):
                path = viewed_path(call, COMMON_READING_TOOLS, True)
                self._views[call.id] = path_atom(path) if path else None
            parts = blocks(message) or [message]
            for text, block in zip(message_texts(message), parts, strict=True):
                call_id = str(field(block, "tool_use_id") or field(block, "id") or "")
                view = self._views.get(call_id) if kind(block) == "tool_result" else None
                for atom in self.index.text(text):
                    self._holders.setdefault(atom, []).append(len(self.sources))
                self.sources.append(Source(self._length, message["role"], text, call_id, view))
            self._length += 1

    def uses_of(self, reply: Message) -> list[Atom]:
        """The atoms of *reply* that were said before, in a fixed order."""
        return sorted(atom for atom in self.index.message(reply) if atom in self._holders)

    def holders(self, atom: Atom) -> list[Source]:
        """The blocks that hold *atom*, oldest first."""
        return [self.sources[index] for index in self._holders.get(atom, ())]


class Context:
    """The atoms and the stored files' keys in the context, updated from turn to turn."""

    def __init__(self, index: AtomIndex, session_id: str) -> None:
        self._index = index
        self._folder = session_folder(session_id)
        self._key = re.compile(re.escape(self._folder) + r"/[^\s\"'`<>|;&)\]]+")
        self._messages: list[Message] = []
        self._counts: Counter[Atom] = Counter()
        self._doubted: Counter[Atom] = Counter()  # notes that say it
        self._keys: Counter[str] = Counter()

    @property
    def keys(self) -> AbstractSet[str]:
        """Keys of stored files whose path is in the context."""
        return {key for key, count in self._keys.items() if count > 0}

    def __contains__(self, atom: Atom) -> bool:
        return self._counts.get(atom, 0) > 0

    def is_doubtful(self, atom: Atom) -> bool:
        """Whether *atom* is in the context only where a stage has chosen lines to keep.

        Such lines are chosen by their atoms. So atoms alone would say that they are enough.
        """
        return 0 < self._counts.get(atom, 0) <= self._doubted.get(atom, 0)

    def update(self, messages: list[Message]) -> None:
        """The context is *messages* now; only what differs from before is read."""
        same = common_prefix(self._messages, messages)
        before, now = self._messages[same:], messages[same:]
        kept = set(map(id, before)).intersection(map(id, now))
        for sign, changed in ((-1, before), (1, now)):
            for message in changed:
                if id(message) not in kept:
                    self._count(message, sign)
        self._messages = messages

    def _count(self, message: Message, sign: int) -> None:
        """Add the atoms and keys of *message*, or with a *sign* of -1 take them away."""
        atoms = self._index.message(message)
        keys: set[str] = set()
        for text in message_texts(message):
            keys.update(self._key.findall(text))
        note = note_of(message)
        if note is not None:  # a stage has chosen its lines
            for number in range(note.first, note.last + 1):
                keys.add(f"{self._folder}/{PurePosixPath(note.path(number)).name}")
            self._doubted.update(dict.fromkeys(atoms, sign))
        self._counts.update(dict.fromkeys(atoms, sign))
        self._keys.update(dict.fromkeys(keys, sign))


class Store:
    """The atoms of the files that the pipeline has written: of *texts*, by key.

    A file is read when it is first asked for.
    """

    def __init__(self, index: AtomIndex, texts: Mapping[str, str]) -> None:
        self._index = index
        self._texts = texts
        self._read = cache(self._atoms)

    def has(self, atom: Atom, keys: AbstractSet[str]) -> bool:
        """Whether one of the files *keys* holds *atom*."""
        return any(atom in self._read(key, self._texts[key]) for key in keys if key in self._texts)

    def _atoms(self, key: str, text: str) -> AbstractSet[Atom]:
        if not key.endswith(".json"):
            return self._index.text(text)
        return frozenset().union(*map(self._index.message, parse_archive(text, key)))


def use_of(
    used: Iterable[Atom], past: Past, context: Context, store: Store, *, strict: bool = False
) -> tuple[Use, dict[Atom, float]]:
    """The places of the *used* atoms; and the weight of each that is not visible.

    With *strict* that is also what is visible only in doubt.
    """
    weights: defaultdict[str, float] = defaultdict(float)
    missing: dict[Atom, float] = {}
    keys = context.keys
    for atom in used:
        doubtful = context.is_doubtful(atom)
        if atom in context:
            where = "visible"
        elif store.has(atom, keys):
            where = "pointer"
        elif any(source.view and source.view in context for source in past.holders(atom)):
            where = "reread"
        else:
            where = "lost"
        weights[where] += weight(atom)
        if doubtful:
            weights["doubtful"] += weight(atom)
        if where != "visible" or (doubtful and strict):
            missing[atom] = weight(atom)
    return Use(**weights), missing


def sources_to_fetch(missing: Iterable[Atom], past: Past) -> list[Source]:
    """The blocks to fetch for what is missing, oldest first.

    For each atom the newest one that no model wrote.
    """
    found = {}
    for atom in missing:
        holders = past.holders(atom)
        newest = ([source for source in holders if source.role == "user"] or holders)[-1]
        found[id(newest)] = newest
    return sorted(found.values(), key=lambda source: source.message)
