"""What a reply uses of the conversation before it, and where that is now.

In the context, in a file, or nowhere.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import PurePosixPath

from ..agent_tools import COMMON_READING_TOOLS
from ..atoms import Atom, AtomIndex, message_texts, path_atom, weight
from ..edits.views import viewed_path
from ..markers.notes import note_of
from ..messages import Message, blocks, field, kind, tool_calls
from ..names import session_folder
from ..stages.archive import parse_archive
from ..tokens import TokenCounter

__all__ = [
    "Context",
    "Past",
    "Source",
    "Store",
    "Use",
    "sources_to_fetch",
    "use_of",
]


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
class Use:
    """Weights of what was used, by where it was.

    *visible* in the context; in a file whose path is visible (*pointer*); in a file view that can
    be repeated, since its path is visible (*reread*); or *lost*. *fetch* is the pointers' weight
    times the tokens of the smallest file that holds each. *doubtful* is the part of *visible* that
    a stricter yardstick does not count.
    """

    visible: float = 0.0
    pointer: float = 0.0
    reread: float = 0.0
    lost: float = 0.0
    fetch: float = 0.0
    doubtful: float = 0.0

    def __add__(self, other: Use) -> Use:
        return Use(
            self.visible + other.visible,
            self.pointer + other.pointer,
            self.reread + other.reread,
            self.lost + other.lost,
            self.fetch + other.fetch,
            self.doubtful + other.doubtful,
        )

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
    def one_hop(self) -> float:
        """The share in the context or one reading call away."""
        return self._share(self.visible + self.pointer)

    @property
    def with_reread(self) -> float:
        """As `one_hop`, and what a second look at the same file would show.

        If the file is still the same.
        """
        return self._share(self.total - self.lost)

    def _share(self, amount: float) -> float:
        total = self.total
        if not total:
            return 1.0
        return amount / total

    @property
    def fetch_tokens(self) -> float:
        """The mean number of tokens to read for what only a pointer leads to."""
        if not self.pointer:
            return 0.0
        return self.fetch / self.pointer


class Past:
    """The recorded conversation so far: which block holds which atom."""

    def __init__(self, index: AtomIndex) -> None:
        self.sources: list[Source] = []
        self._index = index
        self._holders: dict[Atom, list[int]] = {}  # oldest first
        self._views: dict[str, Atom | None] = {}  # by the id of the call
        self._length = 0

    def learn(self, message: Message) -> None:
        """Take in the next message."""
        for call in tool_calls([message]):
            path = viewed_path(call, COMMON_READING_TOOLS, True)
            view = None
            if path:
                view = path_atom(path)
            self._views[call.id] = view
        parts = blocks(message) or [message]
        texts = message_texts(message)
        for text, block in zip(texts, parts, strict=True):
            call_id = _call_id(block)
            view = None
            if kind(block) == "tool_result":
                view = self._views.get(call_id)
            place = len(self.sources)
            for atom in self._index.text(text):
                holders = self._holders.setdefault(atom, [])
                holders.append(place)
            source = Source(
                self._length,
                message["role"],
                text,
                call_id,
                view,
            )
            self.sources.append(source)
        self._length += 1

    def __contains__(self, atom: Atom) -> bool:
        return atom in self._holders

    def uses_of(self, reply: Message) -> list[Atom]:
        """What *reply* says that was said before, in a fixed order."""
        atoms = self._index.message(reply)
        said_before = [atom for atom in atoms if atom in self._holders]
        return sorted(said_before)

    def holders(self, atom: Atom) -> list[Source]:
        """The blocks that hold *atom*, oldest first."""
        indices = self._holders.get(atom, ())
        return [self.sources[index] for index in indices]


def _call_id(block: object) -> str:
    """The id of the call that *block* is part of, "" where it is of none."""
    call_id = field(block, "tool_use_id")
    if not call_id:
        call_id = field(block, "id")
    return str(call_id or "")


class Context:
    """The atoms and the stored files' keys in the context, updated from turn to turn."""

    def __init__(self, index: AtomIndex, session_id: str) -> None:
        self._index = index
        self._folder = session_folder(session_id)
        folder = re.escape(self._folder)
        self._key = re.compile(folder + r"/[^\s\"'`<>|;&)\]]+")
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
        messages = self._counts.get(atom, 0)
        doubted = self._doubted.get(atom, 0)
        return 0 < messages <= doubted

    def update(self, messages: list[Message]) -> None:
        """The context is *messages* now; only what differs from before is read."""
        now = {id(message) for message in messages}
        before = {id(message) for message in self._messages}
        for message in self._messages:
            if id(message) not in now:
                self._remove(message)
        for message in messages:
            if id(message) not in before:
                self._add(message)
        self._messages = messages

    def _remove(self, message: Message) -> None:
        self._counts.subtract(self._index.message(message))
        self._doubted.subtract(self._atoms_of_note(message))
        self._keys.subtract(self._keys_in(message))

    def _add(self, message: Message) -> None:
        self._counts.update(self._index.message(message))
        self._doubted.update(self._atoms_of_note(message))
        self._keys.update(self._keys_in(message))

    def _atoms_of_note(self, message: Message) -> AbstractSet[Atom]:
        """The atoms of *message* where it is a note, whose lines a stage has chosen."""
        return frozenset() if note_of(message) is None else self._index.message(message)

    def _keys_in(self, message: Message) -> set[str]:
        keys: set[str] = set()
        for text in message_texts(message):
            keys.update(self._key.findall(text))
        note = note_of(message)
        if note is None:
            return keys
        for number in range(note.first, note.last + 1):
            path = PurePosixPath(note.path(number))
            keys.add(f"{self._folder}/{path.name}")
        return keys


class Store:
    """The atoms of the files that the pipeline has written."""

    def __init__(self, index: AtomIndex, counter: TokenCounter) -> None:
        self._index = index
        self._counter = counter
        self._holders: dict[Atom, list[str]] = {}
        self._texts: dict[str, str] = {}

    def learn(self, texts: Mapping[str, str]) -> None:
        """Take in the files that are new in *texts*, by key, and those that have changed."""
        for key, text in texts.items():
            before = self._texts.get(key)
            if before is text or before == text:
                continue
            if before is not None:
                self._forget(before, key)
            self._texts[key] = text
            for atom in self._atoms(text, key):
                holders = self._holders.setdefault(atom, [])
                holders.append(key)

    def _forget(self, text: str, key: str) -> None:
        for atom in self._atoms(text, key):
            self._holders[atom].remove(key)

    def _atoms(self, text: str, key: str) -> AbstractSet[Atom]:
        if not key.endswith(".json"):
            return self._index.text(text)
        messages = parse_archive(text, key)
        atoms = [self._index.message(message) for message in messages]
        return frozenset().union(*atoms)

    def smallest(
        self,
        atom: Atom,
        visible: AbstractSet[str],
    ) -> int | None:
        """The tokens of the smallest *visible* file that holds *atom*, None when none does."""
        sizes = []
        for key in self._holders.get(atom, ()):
            if key in visible:
                text = self._texts[key]
                tokens = self._counter.text(text)
                sizes.append(tokens)
        return min(sizes, default=None)


def use_of(
    used: Iterable[Atom],
    past: Past,
    context: Context,
    store: Store,
    doubtful: AbstractSet[Atom] = frozenset(),
) -> tuple[Use, dict[Atom, float]]:
    """Where what is *used* is now; and what of it is not visible, with its weight.

    What is *doubtful* is visible all the same.
    """
    visible = 0.0
    pointer = 0.0
    reread = 0.0
    lost = 0.0
    fetch = 0.0
    missing: dict[Atom, float] = {}
    keys: AbstractSet[str] | None = None
    for atom in used:
        worth = weight(atom)
        if atom in context:
            visible += worth
            continue
        missing[atom] = worth
        if keys is None:
            keys = context.keys
        tokens = store.smallest(atom, keys)
        if tokens is not None:
            pointer += worth
            fetch += worth * tokens
        elif _can_reread(atom, past, context):
            reread += worth
        else:
            lost += worth
    use = Use(
        visible,
        pointer,
        reread,
        lost,
        fetch,
        doubtful=sum(map(weight, doubtful)),
    )
    return use, missing


def _can_reread(
    atom: Atom,
    past: Past,
    context: Context,
) -> bool:
    for source in past.holders(atom):
        view = source.view
        if view is not None and view in context:
            return True
    return False


def sources_to_fetch(
    missing: Iterable[Atom],
    past: Past,
) -> list[Source]:
    """The blocks to fetch for what is missing, oldest first.

    For each atom the newest one that no model wrote.
    """
    found = {}
    for atom in missing:
        holders = past.holders(atom)
        given = [source for source in holders if source.role == "user"]
        candidates = given or holders
        newest = candidates[-1]
        found[id(newest)] = newest
    return sorted(found.values(), key=_message_index)


def _message_index(source: Source) -> int:
    return source.message
