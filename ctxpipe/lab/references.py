"""Measurement of how much of the past conversation that a reply uses is still available.

The past is divided into atoms, such as paths, identifiers and lines. A reply that repeats an atom
of the past uses it. The atom may be in the context, in a file that the context names, or lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache

from ..messages import Message, blocks, common_prefix, field, kind, tool_calls
from ..placeholders.names import session_folder
from ..placeholders.notes import note_of
from ..providers.agent_tools import COMMON_READING_TOOLS
from ..stages.archive import parse_archive
from ..stages.reading.atoms import Atom, AtomIndex, message_texts, path_atom, weight
from ..stages.reading.views import viewed_path
from ..testing.whereabouts import file_keys_in
from .records import Sums


@dataclass(frozen=True, slots=True)
class SourceBlock:
    """A block of the recorded conversation.

    *message* is the index of its message, *text* its text and *call_id* the id of its call, if it
    is part of one. *view* is the path atom of the file that it shows if it is a file view.
    """

    message: int
    role: str
    text: str
    call_id: str = ""
    view: Atom | None = None


@dataclass(frozen=True, slots=True)
class Use(Sums):
    """Total weights of the atoms that replies use, by the place where the agent could find them.

    *visible*: in the context. *pointer*: in a file whose path the context shows. *reread*: in a
    file view that can be repeated, because the context shows the path of the file. *lost*: in none
    of these places. *doubtful* is the part of *visible* that is only in notes, whose lines a stage
    has selected; strict recall does not count it.

    Each use of an atom counts with the weight of the atom, so recall is a share of weights.
    """

    visible: float = 0.0
    pointer: float = 0.0
    reread: float = 0.0
    lost: float = 0.0
    doubtful: float = 0.0

    @property
    def total(self) -> float:
        """The weight of all used atoms."""
        return self.visible + self.pointer + self.reread + self.lost

    @property
    def recall(self) -> float:
        """The share of the weights that was in the context; 1 if nothing was used."""
        return self._share(self.visible)

    @property
    def strict_recall(self) -> float:
        """The share of the weights that was in the context outside of notes."""
        return self._share(self.visible - self.doubtful)

    @property
    def with_reread(self) -> float:
        """The share in the context, or one reading call away.

        This assumes that a file which is viewed again has not changed.
        """
        return self._share(self.total - self.lost)

    def _share(self, amount: float) -> float:
        return amount / self.total if self.total else 1.0


class Past:
    """Index of the recorded conversation so far: the blocks that hold each atom."""

    def __init__(self, index: AtomIndex) -> None:
        self.sources: list[SourceBlock] = []
        self.index = index
        self._holders: dict[Atom, list[int]] = {}  # indices of sources, oldest first
        self._views: dict[str, Atom | None] = {}  # by the id of the call
        self._length = 0

    def learn(self, messages: Iterable[Message]) -> None:
        """Record in which block each atom of the next *messages* of the conversation is.

        Atoms are distinctive strings, such as paths and names.
        """
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
                self.sources.append(SourceBlock(self._length, message["role"], text, call_id, view))
            self._length += 1

    def uses_of(self, reply: Message) -> list[Atom]:
        """Return the atoms of *reply* that occur in the conversation before it, sorted."""
        return sorted(atom for atom in self.index.message(reply) if atom in self._holders)

    def holders(self, atom: Atom) -> list[SourceBlock]:
        """Return the blocks that hold *atom*, oldest first."""
        return [self.sources[index] for index in self._holders.get(atom, ())]


class Context:
    """The atoms in the context and the keys of the stored files that it names.

    `update` reads only the messages that changed since the previous turn.
    """

    def __init__(self, index: AtomIndex, session_id: str) -> None:
        self._index = index
        self._folder = session_folder(session_id)
        self._messages: list[Message] = []
        self._counts: Counter[Atom] = Counter()
        self._note_counts: Counter[Atom] = Counter()  # of the notes that hold an atom
        self._keys: Counter[str] = Counter()

    @property
    def keys(self) -> AbstractSet[str]:
        """The keys of the stored files whose path is in the context."""
        return {key for key, count in self._keys.items() if count > 0}

    def __contains__(self, atom: Atom) -> bool:
        return self._counts.get(atom, 0) > 0

    def is_doubtful(self, atom: Atom) -> bool:
        """Return True if *atom* is in the context only in notes, whose lines a stage selected.

        The stage selects lines by their atoms. So the atoms are there, even if the selected lines
        are not enough to work with.
        """
        return 0 < self._counts.get(atom, 0) <= self._note_counts.get(atom, 0)

    def update(self, messages: list[Message]) -> None:
        """Replace the context by *messages*, reading only messages that were added or removed."""
        same = common_prefix(self._messages, messages)
        old_messages = self._messages[same:]
        new_messages = messages[same:]
        old_ids = {id(message) for message in old_messages}
        new_ids = {id(message) for message in new_messages}
        for message in old_messages:
            if id(message) not in new_ids:
                self._count(message, -1)
        for message in new_messages:
            if id(message) not in old_ids:
                self._count(message, 1)
        self._messages = messages

    def _count(self, message: Message, sign: int) -> None:
        """Count the atoms and file keys of *message* as available; with *sign* -1 as gone."""
        atoms = self._index.message(message)
        keys = file_keys_in(message, self._folder)
        if note_of(message) is not None:  # a stage selected its lines
            self._note_counts.update(dict.fromkeys(atoms, sign))
        self._counts.update(dict.fromkeys(atoms, sign))
        self._keys.update(dict.fromkeys(keys, sign))


class Store:
    """The atoms of the files that the pipeline wrote, whose *texts* are given by key.

    A file is parsed when `has` first needs it.
    """

    def __init__(self, index: AtomIndex, texts: Mapping[str, str]) -> None:
        self._index = index
        self._texts = texts
        self._atoms_of_file = cache(self._atoms)

    def has(self, atom: Atom, keys: AbstractSet[str]) -> bool:
        """Return True if one of the files *keys* holds *atom*."""
        for key in keys:
            if key in self._texts and atom in self._atoms_of_file(key, self._texts[key]):
                return True
        return False

    def _atoms(self, key: str, text: str) -> AbstractSet[Atom]:
        """Return the atoms of *text*: of an archive, if *key* is the name of a JSON file."""
        if not key.endswith(".json"):
            return self._index.text(text)
        messages = parse_archive(text, key)
        return frozenset().union(*(self._index.message(message) for message in messages))


def use_of(
    atoms: Iterable[Atom], past: Past, context: Context, store: Store
) -> tuple[Use, dict[Atom, float]]:
    """Return the weights of the used *atoms* by place, and the weight of each missing atom.

    The place is "visible" if *context* shows the atom, else "pointer" if *store* has it in a file
    whose path the context shows, else "reread" if a block of *past* that holds it can be viewed
    again, else "lost". An atom is missing if it is not visible. The weight of atoms for which
    `Context.is_doubtful` is True is also counted as "doubtful".
    """
    weights: defaultdict[str, float] = defaultdict(float)
    missing: dict[Atom, float] = {}
    keys = context.keys
    for atom in atoms:
        if atom in context:
            where = "visible"
        elif store.has(atom, keys):
            where = "pointer"
        elif any(source.view and source.view in context for source in past.holders(atom)):
            where = "reread"
        else:
            where = "lost"
        weights[where] += weight(atom)
        if context.is_doubtful(atom):
            weights["doubtful"] += weight(atom)
        if where != "visible":
            missing[atom] = weight(atom)
    return Use(**weights), missing


def sources_to_fetch(missing: Iterable[Atom], past: Past) -> list[SourceBlock]:
    """Return the blocks to fetch for the *missing* atoms, oldest first.

    For each atom this is the newest block of a user message that holds it, or the newest of all if
    only the model wrote it.
    """
    sources: dict[int, SourceBlock] = {}  # by identity, because atoms may share a block
    for atom in missing:
        holders = past.holders(atom)
        user_blocks = [source for source in holders if source.role == "user"]
        newest = (user_blocks or holders)[-1]
        sources[id(newest)] = newest
    return sorted(sources.values(), key=lambda source: source.message)
