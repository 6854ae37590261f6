"""What one message can refer to in another: lines, paths, names, numbers and hashes, found by rule.

An atom is a string: the letter of its class, then its value. The classes are those of the recall
metric: L a line of 24 characters and 3 words or more, P the last two segments of a path, F a bare
file name, I an identifier as code writes it, N a number that is neither round nor a year, H a
hexadecimal id.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeAlias

from .._values import leaves
from ..messages import Block, Message, as_blocks, block_text, field, kind
from ..providers.agent_tools import WIDE_GUTTER
from .paths import path_segments

Atom: TypeAlias = str

WEIGHTS: Mapping[str, float] = {"L": 1.0, "H": 1.0, "P": 0.5, "F": 0.5, "I": 0.5, "N": 0.5}
"""A line or a hash is hardly used by chance; a name or a number may be."""

MIN_LINE = 24
MAX_LINE = 200
MIN_PATH = 6

# Only where a run of such characters begins: tried at each of them, a long run would take
# quadratic time.
_PATH = re.compile(r"(?<![\w.@+~/-])(?:https?://)?(?:[\w.@+~-]*+/)+[\w.@+-]*\w")
_FILE = re.compile(
    r"\b[\w-]{1,100}+\."
    r"(?:py|go|tsx?|jsx?|rs|java|md|json|ya?ml|toml|sh|txt"
    r"|c|h|cpp|rb|sql|html|css|lock|mod|log)\b"
)
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{5,63}")
_CODE = re.compile(r"[^_]_+[^_]|[a-z0-9][A-Z]")
_NUMBER = re.compile(r"\d(?<![\w.].)(?:\d*+(?:\.\d+)+|\d{2,11})(?![\w.])")
_ROUND_OR_YEAR = re.compile(r"[1-9]0+|(?:19|20)\d\d")
_DIGIT = re.compile(r"\d")
_HEX = re.compile(r"[0-9a-f](?<!\w.)[0-9a-f]{6,39}+\b")
_THREE_WORDS = re.compile(r"\b\w++\W++\w++\W++\w")


def weight(atom: Atom) -> float:
    """How much a use of *atom* counts."""
    return WEIGHTS[atom[0]]


def atoms(text: str) -> frozenset[Atom]:
    """The atoms of *text*."""
    found: set[Atom] = set()
    lines = set(text.splitlines())
    paths = _PATH.findall("\n".join(line for line in lines if "/" in line))
    found.update(filter(None, map(path_atom, paths)))
    names = _FILE.findall("\n".join(line for line in lines if "." in line))
    found.update("F" + name for name in names)
    words = filter(_CODE.search, set(_IDENTIFIER.findall(text)))
    found.update("I" + word for word in words)
    if _DIGIT.search(text):
        numbers = _NUMBER.findall(text)
        found.update("N" + number for number in numbers if not _ROUND_OR_YEAR.fullmatch(number))
        ids = _HEX.findall(text)
        found.update("H" + name for name in ids if not (name.isdigit() or name.isalpha()))
    found.update("L" + line for line in map(_line, lines) if line)
    return frozenset(map(sys.intern, found))


def path_atom(path: str) -> Atom | None:
    """*path* reduced to its last two segments; None when it is too short to mean one file."""
    parts = path_segments(path.rstrip(".,:;)"))
    segments = [part for part in parts if part not in (".", "..", "~")]
    if len(segments) == 1 and "." not in segments[0]:
        return None
    short = "/".join(segments[-2:])
    return "P" + short if len(short) >= MIN_PATH else None


def _line(line: str) -> str:
    """*line* without line number and indentation, "" when it is too short to be recognized."""
    line = " ".join(WIDE_GUTTER.sub("", line).split())
    if len(line) < MIN_LINE or not _THREE_WORDS.search(line):
        return ""
    return line[:MAX_LINE]


# Of messages --------------------------------------------------------------------------------------


def content_text(block: Block) -> str:
    """Return what *block* says: its text, or the texts and numbers in the input of a call.

    "" for thinking, which says nothing to others, and for blocks without a text.
    """
    if kind(block) == "tool_use":
        held = leaves(field(block, "input"))
        return "\n".join(str(leaf) for _, leaf in held if not isinstance(leaf, bool | None))
    return block_text(block) or ""


def message_texts(message: Message) -> list[str]:
    """Return what each block of *message* says; bare text is one block."""
    return [content_text(block) for block in as_blocks(message)]


class AtomIndex:
    """The atoms of texts and messages, extracted once.

    It grows with the distinct texts of one transcript.
    """

    def __init__(self) -> None:
        self.text: Callable[[str], frozenset[Atom]] = cache(atoms)
        """The atoms of a text."""
        self._messages: dict[int, tuple[Message, frozenset[Atom]]] = {}

    def message(self, message: Message) -> frozenset[Atom]:
        """The atoms of all blocks of *message*, which must not change any more."""
        if id(message) not in self._messages:
            found = frozenset().union(*map(self.text, message_texts(message)))
            # With the message: as long as it is here, no other one has its id.
            self._messages[id(message)] = (message, found)
        return self._messages[id(message)][1]
