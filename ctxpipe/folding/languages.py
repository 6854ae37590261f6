"""The languages that can be folded: file names, node kinds that define a name, places of the name.

They are in languages.toml. The kinds are those of the grammars inside ast-grep-py, which crashes
when it is asked for a language that is not in that table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypeAlias

DefinitionType: TypeAlias = Literal["class", "interface", "type", "function"]
"""The type of a definition, the same in all languages.

Methods, constructors and accessors are functions; structs, protocols and traits are interfaces;
enums and aliases are types.
"""


class Language(NamedTuple):
    """How the definitions of one language look in its syntax tree. Kinds are separated by blanks.

    The name of a definition is in the field "name" unless *names* gives other fields or kinds of
    children.
    """

    name: str
    """As the parser calls it."""
    extensions: str
    classes: str = ""
    interfaces: str = ""
    types: str = ""
    functions: str = ""
    names: Mapping[str, str] = {}
    """Kind of definition → the fields or kinds of children one of which is its name instead."""
    prefixes: Mapping[str, str] = {}
    """Kind of definition → what belongs to its name and is put before it."""
    told_by: Mapping[str, DefinitionType] = {}
    """Kind of a child, mostly a keyword → the type it makes of a kind that has several types."""
    named_by: Mapping[str, str] = {}
    """Kind of a value's parent → the part of it that names the value: ``x = function () {}``."""
    calls: Mapping[str, DefinitionType] = {}
    """Macro → what a call of it defines, in a language whose definitions are calls."""
    through: Mapping[str, str] = {}
    """Kind → what must be directly around the name.

    A declaration is one of a function, or of something else.
    """
    bodied: str = ""
    """Kinds that define something only where they have a body; elsewhere they mention it."""
    inside: Mapping[str, str] = {}
    """Kind → the only parents below which it defines something that is more than local."""
    outside: Mapping[str, str] = {}
    """Kind → the ancestor below which it defines nothing of interest."""
    keywords: Mapping[str, DefinitionType] = {}
    """Keyword → the type of the name after it, where broken syntax gives no definition."""
    unparsed: str = ""
    """Kind that the parser leaves as bare words, such as a macro's body; it may have keywords."""
    has_macros: bool = False
    """Whether macros may hide definitions from the parser; where it fails, they are left out."""
    has_locals: bool = True
    """Whether functions within functions are listed too."""
    openings: Mapping[str, str] = {}
    """What a view that begins within a file may lack → the pattern of its first line then."""
    misread: str = ""
    """Kinds that a statement after such an opening resembles, unless they have a body."""
    else_as: str = ""
    """The grammar to try as well where this one finds errors."""

    def kinds(self) -> dict[str, DefinitionType]:
        """Every kind of node that defines a name, with the type of what it defines."""
        by_type: dict[DefinitionType, str] = {
            "class": self.classes,
            "interface": self.interfaces,
            "type": self.types,
            "function": self.functions,
        }
        return {kind: type_ for type_, kinds in by_type.items() for kind in kinds.split()}


# Read with the module, so that no call reads a file on an event loop.
_TABLE: Mapping[str, Any] = tomllib.loads(
    (files(__package__) / "languages.toml").read_text("utf-8")
)


@cache
def languages() -> Mapping[str, Language]:
    """All languages, by the names that the parser has for them."""
    found: dict[str, Language] = {}
    for name, row in _TABLE["languages"].items():
        settings = dict(row)
        like = found.get(settings.pop("like", ""), Language(name, ""))
        found[name] = like._replace(name=name, **settings)
    return found


STEPS: Mapping[str, str] = _TABLE["steps"]
"""Kind of a node that contains more than the name → the field that leads to it.

"" is the first named child.
"""


@cache
def _by_extension() -> Mapping[str, Language]:
    return {
        extension: language
        for language in languages().values()
        for extension in language.extensions.split()
    }


def language_of(path: str) -> Language | None:
    """The language of the file at *path*, by its extension; None for one that cannot be folded."""
    _, dot, extension = path.rpartition(".")
    return _by_extension().get(extension.lower()) if dot else None
