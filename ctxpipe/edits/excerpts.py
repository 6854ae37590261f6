"""Which lines of a text that leaves the context are worth keeping in sight.

A line is worth the chance that something in it is used again: its *atoms*, each by its weight and
by how often an atom of its class was used again, in recorded sessions of coding agents, after the
kind of block that held it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, TypeAlias

from .atoms import Atom, atoms, weight

PassageKind: TypeAlias = Literal["call", "text", "view", "result"]

CHANCES: Mapping[PassageKind, Mapping[str, float]] = {
    "call": {"P": 0.22, "F": 0.2, "I": 0.13, "N": 0.13, "L": 0.08, "H": 0.1},
    "text": {"P": 0.08, "F": 0.08, "I": 0.1, "N": 0.02, "L": 0.015, "H": 0.01},
    "view": {"P": 0.044, "F": 0.06, "I": 0.043, "N": 0.005, "L": 0.015, "H": 0.0},
    "result": {"P": 0.0135, "F": 0.03, "I": 0.02, "N": 0.01, "L": 0.003, "H": 0.0},
}
"""The chance that an atom of a class is used again, by the kind of block that held it: the input of
a call, the assistant's own text, a file view, or any other result."""

SHORTEST_LINE = 8
LONGEST_LINE = 300
MOST_SEARCHED = 60_000  # characters of one passage

_WORD = re.compile("[A-Za-z]+|[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text that leaves the context, as part of step *step*."""

    text: str = field(repr=False)
    kind: PassageKind
    step: int

    @property
    def lines(self) -> list[str]:
        """The lines of the text, as far as it is searched."""
        return self.text[:MOST_SEARCHED].splitlines()


@dataclass(frozen=True, slots=True)
class _Line:
    """A line that may stay: its place in the order of the source, and what it costs and says."""

    place: int
    text: str
    step: int
    tokens: int
    atoms: frozenset[Atom]
    density: float


def choose_lines(
    passages: Sequence[Passage],
    visible: AbstractSet[Atom],
    count: Callable[[str], int],
    *,
    min_value: float,
    max_tokens: float,
) -> dict[int, list[str]]:
    """The lines of *passages* to keep in sight, by step, in the order of their source.

    They are taken greedily by value per token, each valued anew by what neither *visible* messages
    nor lines taken before show, down to *min_value* expected uses per 1,000 tokens and up to
    *max_tokens* in all. *count* gives the tokens of a text. The same input, the same lines.
    """
    read = cache(atoms)  # of a line: no atom spans two
    chances = _chances(passages, read)
    candidates = _candidates(passages, read, chances, visible, count, min_value)
    candidates.sort(key=lambda line: (-line.density, line.place))
    shown = set(visible)
    left = max_tokens
    chosen: list[_Line] = []
    for line in candidates:
        worth = _worth(line.atoms, chances, shown)
        if line.tokens <= left and worth / line.tokens * 1000 >= min_value:
            chosen.append(line)
            shown |= line.atoms
            left -= line.tokens
    lines: dict[int, list[str]] = {}
    for line in sorted(chosen, key=lambda line: line.place):
        lines.setdefault(line.step, []).append(line.text)
    return lines


def _chances(
    passages: Iterable[Passage], read: Callable[[str], AbstractSet[Atom]]
) -> dict[Atom, float]:
    """The chance of each atom to be used again: the largest over the passages that hold it."""
    chances: dict[Atom, float] = {}
    for passage in passages:
        of_class = CHANCES[passage.kind]
        for line in passage.lines:
            for atom in read(line):
                chances[atom] = max(chances.get(atom, 0.0), of_class[atom[0]])
    return chances


def _candidates(
    passages: Iterable[Passage],
    read: Callable[[str], frozenset[Atom]],
    chances: Mapping[Atom, float],
    visible: AbstractSet[Atom],
    count: Callable[[str], int],
    min_value: float,
) -> list[_Line]:
    """The distinct lines that are worth their tokens, if nothing else is kept."""
    candidates: list[_Line] = []
    known: set[str] = set()
    place = 0
    for passage in passages:
        for raw_line in passage.lines:
            if not SHORTEST_LINE <= len(raw_line) <= LONGEST_LINE:
                continue
            text = raw_line.strip()
            if text in known:
                continue
            known.add(text)
            found = read(raw_line)
            worth = _worth(found, chances, visible)
            # No control character but tabs, no half of a character, and not the price of counting.
            is_plain = text.replace("\t", " ").isprintable()
            if worth / _least_tokens(text) * 1000 < min_value or not is_plain:
                continue
            tokens = 1 + count(text)
            density = worth / tokens * 1000
            if density >= min_value:
                candidates.append(_Line(place, text, passage.step, tokens, found, density))
                place += 1
    return candidates


def _worth(
    found: Iterable[Atom], chances: Mapping[Atom, float], hidden: AbstractSet[Atom]
) -> float:
    """The expected uses of the atoms *found*, by weight, except those in *hidden*."""
    # In a fixed order: sums of floats depend on it, and that of a set on the process.
    return sum(
        weight(atom) * chances.get(atom, 0.0) for atom in sorted(found) if atom not in hidden
    )


def _least_tokens(line: str) -> int:
    """At least so many tokens are in *line*, with the break after it.

    In the encodings of tiktoken no token spans two words, nor a word and a number, nor more than
    three digits.
    """
    words = _WORD.findall(line) if line.isascii() else line.split()
    return 1 + max(1, len(words))
