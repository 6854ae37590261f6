"""Languages that can be folded: extensions, node kinds that define a name, places of the name.

The table is ``languages.toml``. Its kinds are those of the grammars in ast-grep-py. That package
crashes when it is asked for a language that it does not have, so only those of the table are used.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple, TypeAlias

DefinitionType: TypeAlias = Literal["class", "interface", "type", "function"]
"""Type of a definition, the same in all languages.

Methods, constructors and accessors are functions; structs, protocols and traits are interfaces;
enums and aliases are types.
"""


class Language(NamedTuple):
    """Description of one language: the nodes of its syntax tree that define a name.

    Several kinds of node are separated by blanks. The name of a definition is in the field "name"
    unless *names* gives other fields or kinds of children.
    """

    name: str
    """Name of the language in the parser."""
    extensions: str
    classes: str = ""
    interfaces: str = ""
    types: str = ""
    functions: str = ""
    names: Mapping[str, str] = {}
    """Kind of definition → the fields or kinds of children one of which is its name instead."""
    prefixes: Mapping[str, str] = {}
    """Kind of definition → what belongs to its name and is put before it."""
    type_by_child: Mapping[str, DefinitionType] = {}
    """Kind of a child, mostly a keyword → the type of a definition that has such a child."""
    name_in_parent: Mapping[str, str] = {}
    """Kind of a value's parent → its part that names the value: ``x = function () {}``."""
    calls: Mapping[str, DefinitionType] = {}
    """Macro → what a call of it defines, in a language whose definitions are calls."""
    through: Mapping[str, str] = {}
    """Kind → the declarators one of which must enclose the name, so that it is a function's."""
    kinds_with_body: str = ""
    """Kinds that define a name only if they have a body; without one they mention it."""
    inside: Mapping[str, str] = {}
    """Kind → the only parents below which its definitions are not local."""
    outside: Mapping[str, str] = {}
    """Kind → the ancestor below which it defines nothing of interest."""
    keywords: Mapping[str, DefinitionType] = {}
    """Keyword → the type of the name after it, used if broken syntax gives no definition."""
    unparsed: str = ""
    """Kind that the parser leaves as bare words, such as a macro's body; keywords may be in it."""
    has_macros: bool = False
    """True if macros can hide definitions; they are blanked out if the parser fails."""
    has_locals: bool = True
    """True if functions inside functions are listed too."""
    openings: Mapping[str, str] = {}
    """Missing first line of a view that begins inside a file → pattern of the line after it."""
    kinds_after_opening: str = ""
    """Kinds that a statement after such an opening resembles; they need a body to count."""
    other_grammar: str = ""
    """Grammar to try as well if this one finds errors."""

    def kinds(self) -> dict[str, DefinitionType]:
        """Return every kind of node that defines a name, with the type of the definition."""
        by_type: dict[DefinitionType, str] = {
            "class": self.classes,
            "interface": self.interfaces,
            "type": self.types,
            "function": self.functions,
        }
        return {kind: type_ for type_, kinds in by_type.items() for kind in kinds.split()}


# Read at import, so that no call reads a file on an event loop.
_TABLE: Mapping[str, Any] = tomllib.loads(
    (files(__package__) / "languages.toml").read_text("utf-8")
)


@cache
def languages() -> Mapping[str, Language]:
    """Return all languages, by their names in the parser."""
    by_name: dict[str, Language] = {}
    for name, row in _TABLE["languages"].items():
        settings = dict(row)
        base = by_name.get(settings.pop("like", ""), Language(name, ""))
        by_name[name] = base._replace(name=name, **settings)
    return by_name


STEPS: Mapping[str, str] = _TABLE["steps"]
"""Kind of a node around a name → the field that leads to the name; "" is the first named child."""


@cache
def _by_extension() -> Mapping[str, Language]:
    """Return the language of each file extension."""
    return {
        extension: language
        for language in languages().values()
        for extension in language.extensions.split()
    }


def language_of(path: str) -> Language | None:
    """Return the language of the file at *path*, by its extension; None if it cannot be folded."""
    _, dot, extension = path.rpartition(".")
    if not dot:
        return None
    return _by_extension().get(extension.lower())
