"""Choose the lines of a text that stay in sight when the text leaves the context.

The value of a line is the number of times that something in it is expected to be used again. It is
the sum over the *atoms* in the line (paths, names, numbers …, see `atoms`): the weight of the atom,
times the chance that an atom of its class is used again. The chances were measured in recorded
sessions of coding agents.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, TypeAlias

from ..reading.atoms import Atom, atoms, weight
from ..reading.scripts import length_in_latin

TextKind: TypeAlias = Literal["call", "text", "view", "result"]

CHANCES: Mapping[TextKind, Mapping[str, float]] = {
    "call": {"P": 0.22, "F": 0.2, "I": 0.13, "N": 0.13, "L": 0.08, "H": 0.1},
    "text": {"P": 0.08, "F": 0.08, "I": 0.1, "N": 0.02, "L": 0.015, "H": 0.01},
    "view": {"P": 0.044, "F": 0.06, "I": 0.043, "N": 0.005, "L": 0.015, "H": 0.0},
    "result": {"P": 0.0135, "F": 0.03, "I": 0.02, "N": 0.01, "L": 0.003, "H": 0.0},
}
"""Chance that an atom of a class is used again, by the kind of block that held it.

The kinds are the input of a call, the assistant's own text, the view of a file, and any other
result.
"""

MIN_LINE_LETTERS = 8
MAX_LINE_CHARS = 300
MAX_SEARCHED_CHARS = 60_000
"""Characters of a text that are searched for lines."""

_WORD = re.compile("[A-Za-z]+|[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class LeavingText:
    """A text of step *step* that leaves the context."""

    text: str = field(repr=False)
    kind: TextKind
    step: int

    @property
    def lines(self) -> list[str]:
        """The lines of the text, without those after its first `MAX_SEARCHED_CHARS` characters."""
        return self.text[:MAX_SEARCHED_CHARS].splitlines()


@dataclass(frozen=True, slots=True)
class _CandidateLine:
    """A line that may stay.

    *place* is its place in the order of the source, *density* its expected uses per 1,000 tokens if
    no other line stays.
    """

    place: int
    text: str
    step: int
    tokens: int
    atoms: frozenset[Atom]
    density: float


def choose_lines(
    texts: Sequence[LeavingText],
    visible: AbstractSet[Atom],
    count: Callable[[str], int],
    *,
    min_value: float,
    max_tokens: float,
) -> dict[int, list[str]]:
    """Return the lines of *texts* to keep in sight, by step, in the order of their source.

    The choice is greedy: the line with the most expected uses per token comes first. An atom counts
    only if it is not *visible* already and no line chosen before shows it. A line needs *min_value*
    expected uses per 1,000 tokens, and all lines together take at most *max_tokens*. *count*
    returns the tokens of a text. The same input always has the same result.
    """
    atoms_of_line = cache(atoms)  # line by line, since no atom spans two lines
    chances = _chances(texts, atoms_of_line)
    candidates = _candidates(texts, atoms_of_line, chances, visible, count, min_value)
    candidates.sort(key=lambda line: (-line.density, line.place))
    visible_now = set(visible)
    tokens_left = max_tokens
    chosen_lines: list[_CandidateLine] = []
    for line in candidates:
        uses = _sum_expected_uses(line.atoms, chances, visible_now)
        if line.tokens <= tokens_left and uses / line.tokens * 1000 >= min_value:
            chosen_lines.append(line)
            visible_now |= line.atoms
            tokens_left -= line.tokens
    chosen_lines.sort(key=lambda line: line.place)
    lines_by_step: dict[int, list[str]] = {}
    for line in chosen_lines:
        lines_by_step.setdefault(line.step, []).append(line.text)
    return lines_by_step


def _chances(
    texts: Iterable[LeavingText], atoms_of_line: Callable[[str], AbstractSet[Atom]]
) -> dict[Atom, float]:
    """Return the chance that each atom is used again: the largest over the texts that hold it."""
    chances: dict[Atom, float] = {}
    for text in texts:
        chance_by_class = CHANCES[text.kind]
        for line in text.lines:
            for atom in atoms_of_line(line):
                chances[atom] = max(chances.get(atom, 0.0), chance_by_class[atom[0]])
    return chances


def _candidates(
    texts: Iterable[LeavingText],
    atoms_of_line: Callable[[str], frozenset[Atom]],
    chances: Mapping[Atom, float],
    visible: AbstractSet[Atom],
    count: Callable[[str], int],
    min_value: float,
) -> list[_CandidateLine]:
    """Return the distinct lines that are worth their tokens if no other line stays."""
    candidates: list[_CandidateLine] = []
    seen_lines: set[str] = set()
    place = 0
    for text in texts:
        for raw_line in text.lines:
            if len(raw_line) > MAX_LINE_CHARS or _is_short(raw_line):
                continue
            line = raw_line.strip()
            if line in seen_lines:
                continue
            seen_lines.add(line)
            line_atoms = atoms_of_line(raw_line)
            uses = _sum_expected_uses(line_atoms, chances, visible)
            # Counting tokens is slow: a lower bound rules out most lines first.
            if uses / _least_tokens(line) * 1000 < min_value:
                continue
            # A line with control characters, except tabs, or with half a character never stays.
            if not line.replace("\t", " ").isprintable():
                continue
            tokens = 1 + count(line)
            density = uses / tokens * 1000
            if density >= min_value:
                candidate = _CandidateLine(place, line, text.step, tokens, line_atoms, density)
                candidates.append(candidate)
                place += 1
    return candidates


def _is_short(line: str) -> bool:
    """Return True if *line* has fewer than `MIN_LINE_LETTERS` letters, in any script."""
    if len(line) >= MIN_LINE_LETTERS:
        return False
    return line.isascii() or length_in_latin(line) < MIN_LINE_LETTERS


def _sum_expected_uses(
    line_atoms: Iterable[Atom], chances: Mapping[Atom, float], visible: AbstractSet[Atom]
) -> float:
    """Return the expected uses of *line_atoms*, by weight, without those that are *visible*."""
    # Sorted, as the order of a set differs between processes and changes a sum of floats.
    return sum(
        weight(atom) * chances.get(atom, 0.0) for atom in sorted(line_atoms) if atom not in visible
    )


def _least_tokens(line: str) -> int:
    """Return a lower bound of the tokens in *line* and the line break after it.

    In the encodings of tiktoken no token spans two words, nor a word and a number, nor more than
    three digits.
    """
    words = _WORD.findall(line) if line.isascii() else line.split()
    return 1 + max(1, len(words))
