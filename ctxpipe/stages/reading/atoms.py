"""Find what one message can refer to in another: lines, paths, names, numbers and hashes.

An *atom* is a string: the letter of its class, followed by its value. The classes are those of the
recall metric:

    L   a line of 24 letters and 3 words or more, in any script
    P   the last two segments of a path
    F   a file name without a folder
    I   an identifier as code writes it
    N   a number that is neither round nor a year
    H   a hexadecimal id
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TypeAlias

from ..._values import leaves
from ...messages import Block, Message, as_blocks, block_text, field, kind
from ...messages.paths import path_segments
from ...providers.agent_tools import WIDE_GUTTER
from .scripts import has_three_words, length_in_latin, separate_scripts

Atom: TypeAlias = str

WEIGHTS: Mapping[str, float] = {"L": 1.0, "H": 1.0, "P": 0.5, "F": 0.5, "I": 0.5, "N": 0.5}
"""Weight of a use, by the class of its atom.

Names and numbers count half, because the same one may appear twice by chance. That is unlikely for
lines and hashes.
"""

MIN_LINE = 24
MAX_LINE = 200
MIN_PATH = 6

# Only at the beginning of a run of such characters: a search at each of them would take quadratic
# time in a long run.
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


def weight(atom: Atom) -> float:
    """Return the weight of a use of *atom*."""
    return WEIGHTS[atom[0]]


def atoms(text: str) -> frozenset[Atom]:
    """Return the distinctive strings of *text*: paths, file names, code names, numbers, ids, lines.

    Each has a letter before it that names its kind, such as ``Fapp.py``. Round numbers, years and
    words of prose are left out.
    """
    text_atoms: set[Atom] = set()
    lines = set(text.splitlines())
    for line in lines:
        plain_line = _plain_line(line)
        if plain_line:
            text_atoms.add("L" + plain_line)
    if not text.isascii():
        text = separate_scripts(text)
        lines = set(text.splitlines())
    for path in _PATH.findall("\n".join(line for line in lines if "/" in line)):
        atom = path_atom(path)
        if atom is not None:
            text_atoms.add(atom)
    names = _FILE.findall("\n".join(line for line in lines if "." in line))
    text_atoms.update("F" + name for name in names)
    words = set(_IDENTIFIER.findall(text))
    text_atoms.update("I" + word for word in words if _CODE.search(word))
    if _DIGIT.search(text):
        numbers = _NUMBER.findall(text)
        text_atoms.update(
            "N" + number for number in numbers if not _ROUND_OR_YEAR.fullmatch(number)
        )
        ids = _HEX.findall(text)
        text_atoms.update("H" + name for name in ids if not (name.isdigit() or name.isalpha()))
    return frozenset(sys.intern(atom) for atom in text_atoms)


def path_atom(path: str) -> Atom | None:
    """Return the last two segments of *path* as an atom; None if they do not mean one file."""
    parts = path_segments(path.rstrip(".,:;)"))
    segments = [part for part in parts if part not in (".", "..", "~")]
    if len(segments) == 1 and "." not in segments[0]:
        return None
    short = "/".join(segments[-2:])
    return "P" + short if len(short) >= MIN_PATH else None


def _plain_line(line: str) -> str:
    """Return *line* without line number and indentation; "" if it is too short to recognize."""
    line = " ".join(WIDE_GUTTER.sub("", line).split())
    if len(line) < MIN_LINE and (line.isascii() or length_in_latin(line) < MIN_LINE):
        return ""
    return line[:MAX_LINE] if has_three_words(line) else ""


# Messages -----------------------------------------------------------------------------------------


def content_text(block: Block) -> str:
    """Return the text of *block*, or the texts and numbers in the input of a call.

    Returns "" for thinking, which other messages do not see, and for blocks without a text.
    """
    if kind(block) == "tool_use":
        arguments = [leaf for _, leaf in leaves(field(block, "input"))]
        return "\n".join(str(leaf) for leaf in arguments if not isinstance(leaf, bool | None))
    return block_text(block) or ""


def message_texts(message: Message) -> list[str]:
    """Return the text of each block of *message*; a string counts as one block."""
    return [content_text(block) for block in as_blocks(message)]


class AtomIndex:
    """The atoms of the texts and messages of one transcript, each found once.

    It grows with the number of distinct texts.
    """

    def __init__(self) -> None:
        self.text: Callable[[str], frozenset[Atom]] = cache(atoms)
        """Returns the atoms of a text."""
        self._messages: dict[int, tuple[Message, frozenset[Atom]]] = {}

    def message(self, message: Message) -> frozenset[Atom]:
        """Return the atoms of all blocks of *message*, which must not change any more."""
        if id(message) not in self._messages:
            message_atoms: set[Atom] = set()
            for text in message_texts(message):
                message_atoms |= self.text(text)
            # The message is stored too, so that no other one gets its id.
            self._messages[id(message)] = (message, frozenset(message_atoms))
        return self._messages[id(message)][1]
