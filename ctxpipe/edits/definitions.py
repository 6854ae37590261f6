"""What a source text defines: names and lines, read off its syntax tree by the table in
`languages`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, pairwise
from typing import TYPE_CHECKING, TypeAlias

from .languages import STEPS, DefinitionType, Language, language_called, language_of

if TYPE_CHECKING:
    from ast_grep_py import Rule, SgNode

__all__ = [
    "Definition",
    "definitions",
    "definitions_in_batches",
    "without_gutter",
    "without_macros",
]

_BATCH = 500  # definitions: to decode them holds the interpreter


@dataclass(frozen=True, slots=True)
class Definition:
    """A name that a source defines, and the line on which the name stands, counted from 1."""

    type: DefinitionType
    name: str
    line: int


Definitions: TypeAlias = tuple[Definition, ...]


def definitions(path: str, text: str) -> Definitions | None:
    """What *text*, the file at *path* or a view of it, defines, from top to bottom; None in an
    unknown language.

    Lines are the file's own where a view numbers them. Broken syntax yields what can be read.
    Hostile text of a few kilobytes can hold the parser, and with it the interpreter, for minutes:
    run it in a process under limits.
    """
    language = language_of(path)
    if language is None:
        return None
    source, numbers = without_gutter(text)
    found = _read(_without_long_lines(source), language)
    return (
        tuple(replace(each, line=numbers[each.line - 1]) for each in found)
        if numbers
        else tuple(found)
    )


def definitions_in_batches(
    texts: Sequence[str],
) -> Iterator[list[tuple[DefinitionType, str, int]] | None]:
    """The definitions of each file in batches, None after the last of a file.

    Texts are path, text, path, text, …
    """
    for path, text in zip(texts[::2], texts[1::2], strict=True):
        found = [(each.type, each.name, each.line) for each in definitions(path, text) or ()]
        for start in range(0, len(found), _BATCH):
            yield found[start : start + _BATCH]
        yield None


# Views --------------------------------------------------------------------------------------------

GUTTER = re.compile(r"^[ \t]*(\d{1,7}) ?([→\t|│:])(.*)$", re.MULTILINE)
SAMPLE = 4000  # characters: a view is numbered from its beginning or not at all
# longer ones are data or minified, and asking where a node stands takes as long as its line is
LONGEST_LINE = 5000


def without_gutter(text: str) -> tuple[str, list[int]]:
    """*text* without the line numbers of a view (``cat -n``, ``nl``, ``12→``, ``12: ``, ``12|``),
    and those numbers.

    Lines outside the numbering, such as a tool's remarks, become empty. Without numbering the list
    is empty.
    """
    if not _is_numbered(text[:SAMPLE]):
        return text, []
    rows = [GUTTER.match(line) for line in text.split("\n")]
    code = [row[3] if row else "" for row in rows]
    if all(line.startswith(" ") for line in code if line):  # the blank after "12:" is the gutter's
        code = [line[1:] for line in code]
    return "\n".join(code), [int(row[1]) if row else 0 for row in rows]


def _is_numbered(sample: str) -> bool:
    rows = list(GUTTER.finditer(sample))
    filled = sum(1 for line in sample.splitlines() if line and not line.isspace())
    return (
        len(rows) > 1
        and 2 * len(rows) >= filled
        and len({row[2] for row in rows}) == 1
        and all(int(one[1]) < int(other[1]) for one, other in pairwise(rows))
    )


def _without_long_lines(source: str) -> str:
    lines = source.split("\n")
    if max(map(len, lines)) <= LONGEST_LINE:
        return source
    return "\n".join(line if len(line) <= LONGEST_LINE else "" for line in lines)


# Readings -----------------------------------------------------------------------------------------


def _read(source: str, language: Language) -> list[Definition]:
    """The best of what the readings of *source* give; no more are tried once one has no errors."""
    best: list[Definition] = []
    fewest = -1
    for reading, as_language in _readings(source, language):
        tree = _parsed(reading, as_language)
        errors = _errors(tree)
        found = _found(tree, as_language, is_doubtful=errors > 0 or reading is not source)
        if fewest < 0 or (len(found), -errors) > (len(best), -fewest):
            best, fewest = found, errors
        if not errors:
            break
    return best


def _readings(source: str, language: Language) -> Iterator[tuple[str, Language]]:
    """*source*, and other ways to read it; no line moves in any of them."""
    yield source, language
    if language.has_macros:
        yield without_macros(source), language
    if language.else_as:
        yield source, language_called(language.else_as)
    beginning = source.lstrip("\r\n")
    cautious = replace(language, bodied=f"{language.bodied} {language.misread}")
    for opening, sign in language.openings.items():
        if re.match(sign, beginning):
            yield opening + source, cautious


def _parsed(source: str, language: Language) -> SgNode:
    from ast_grep_py import SgRoot

    return SgRoot(source.encode(errors="replace").decode(), language.name).root()


def _errors(tree: SgNode) -> int:
    """Characters that belong to no construct of the language."""
    spans = (node.range() for node in tree.find_all(kind="ERROR"))
    return sum(span.end.index - span.start.index + 1 for span in spans)


MACRO = r"[A-Z][A-Z0-9_]{2,}(?:[ \t]*\([^()\n]*\))?"
MACROS = re.compile(
    rf"""
    ^[ \t]*(?:
        \#[ \t]*(?:if|elif|else|endif)[^\n]*(?:(?<=\\)\n[^\n]*)*      # a conditional: all its branches stay
      | {MACRO}[ \t]*;?[ \t]*$                                        # a macro that is a line
      | (?:{MACRO}[ \t]+)+(?=[\w:<~])                                 # macros before a declaration,
    )
    | (?<![ \t])(?=[ \t]+[A-Z][A-Z0-9_]{{2}})(?:
        (?:(?<=\bstatic)|(?<=\binline)|(?<=\bconstexpr)|(?<=\bvirtual)|(?<=\bextern)|(?<=\bfriend)|(?<=>))
        (?:[ \t]+{MACRO})+(?=[ \t]+[\w:<~])                           # within it,
      | (?:(?<=\bclass)|(?<=\bstruct))(?:[ \t]+{MACRO})+(?=[ \t]+\w[\w:<>,\s]{{0,200}}[:{{;])
      | (?:(?<=\))|(?<=\bconst)|(?<=\boverride))[ \t]+{MACRO}(?=\s*[{{;])  # and behind its parameters
    )
    """,
    re.MULTILINE | re.VERBOSE,
)


def without_macros(source: str) -> str:
    """C or C++ without preprocessor conditionals and the macros around declarations: blanks stand
    in their places.
    """
    return MACROS.sub(lambda macro: re.sub(r"[^\n]", " ", macro[0]), source)


# Definitions --------------------------------------------------------------------------------------

STATEMENTS = "await case catch do else export for function if import return super switch throw try while with yield"
NO_NAMES = frozenset(
    {"_", *STATEMENTS.split()}
)  # what a statement that was misread seems to be called
LONGEST_NAME = (
    100  # a longer one is computed: a key that is an expression, the type that an impl is for
)
ODD = re.compile(
    r"[{};\n]|system-reminder"
)  # no name, or one that would break out of the block it stands in


def _found(tree: SgNode, language: Language, is_doubtful: bool) -> list[Definition]:
    found: Iterable[Definition] = _built(tree, language)
    if is_doubtful or language.unparsed:
        found = chain(found, _broken(tree, language))
    if is_doubtful:
        found = (each for each in found if each.name not in NO_NAMES)
    return list(dict.fromkeys(sorted(found, key=lambda each: each.line)))


def _built(tree: SgNode, language: Language) -> Iterator[Definition]:
    """The definitions that stand in the tree as such."""
    kinds, bodied = _kinds(language.name), language.bodied.split()
    done = 0
    for node in tree.find_all(any=_rules(language.name)):
        span = node.range()
        if span.start.index < done or (node.kind() in bodied and node.field("body") is None):
            continue
        type_ = _type(node, kinds, language)
        if type_ == "function" and not language.has_locals:
            done = span.end.index
        for name in _names(node, language):
            text = language.prefixes.get(node.kind(), "") + _text(name)
            if text and len(text) <= LONGEST_NAME and not ODD.search(text):
                yield Definition(type_, text, name.range().start.line + 1)


def _broken(tree: SgNode, language: Language) -> Iterator[Definition]:
    """The names that follow a keyword where the parser could not build a definition, or did not
    try.
    """
    rules: list[Rule] = [{"kind": "ERROR"}]
    if language.unparsed:
        rules.append(
            {"kind": language.unparsed, "regex": rf"\b({'|'.join(language.keywords)})\s+\w"}
        )
    for node in tree.find_all(any=rules):
        for word, name in pairwise(child for child in node.children() if child.is_leaf()):
            type_ = language.keywords.get(word.text())
            if type_ is not None and re.fullmatch(r"[^\W\d]\w*[?!]?", name.text()):
                yield Definition(type_, name.text(), name.range().start.line + 1)


@cache
def _kinds(language: str) -> Mapping[str, DefinitionType]:
    return dict(language_called(language).kinds())


@cache
def _rules(language: str) -> list[Rule]:
    """What the parser is asked for: every kind of definition that the language has."""
    table = language_called(language)
    rules: list[Rule] = []
    for kind in _kinds(language):
        rule: Rule = {"kind": kind}
        if kind in table.inside:
            rule["inside"] = {"any": [{"kind": parent} for parent in table.inside[kind].split()]}
        if kind in table.outside:
            rule["not"] = {"inside": {"kind": table.outside[kind], "stopBy": "end"}}
        rules.append(rule)
    if table.calls:
        rules.append(
            {"kind": "call", "has": {"field": "target", "regex": f"^({'|'.join(table.calls)})$"}}
        )
    return [rule for rule in rules if _is_known(rule, language)]


def _is_known(rule: Rule, language: str) -> bool:
    """Whether the installed parser has the kinds of *rule*: one that a later grammar renames must
    not cost the rest.
    """
    from ast_grep_py import SgRoot

    try:
        SgRoot("", language).root().find(any=[rule])
    except RuntimeError:
        return False
    return True


def _type(node: SgNode, kinds: Mapping[str, DefinitionType], language: Language) -> DefinitionType:
    target = node.field("target") if language.calls else None
    if target is not None:
        return language.calls[target.text()]
    type_ = kinds[node.kind()]
    if type_ == "function" or not language.told_by:
        return type_
    told = (language.told_by.get(child.kind()) for child in node.children())
    return next(filter(None, told), type_)


# Names --------------------------------------------------------------------------------------------

DECLARATORS = frozenset(
    {"function_declarator", "pointer_declarator", "array_declarator", "reference_declarator"}
)
COMPUTED = frozenset({"subscript_expression", "bracket_index_expression"})
PATTERNS = frozenset({"object_pattern", "array_pattern"})
WRAPPERS = frozenset(
    {
        "parenthesized_expression",
        "expression_list",
        "as_expression",
        "satisfies_expression",
        "type_annotation",
    }
)


def _names(node: SgNode, language: Language) -> Iterator[SgNode]:
    """The names of a definition: of what it is assigned to, where it is a value, and its own."""
    given = _given_name(node, language) if language.named_by else None
    if given is not None:
        yield given
    own = _named(
        node, language.names.get(node.kind(), "name"), language.through.get(node.kind(), "")
    )
    if own is not None and (given is None or given.text() != own.text()):
        yield own


def _given_name(node: SgNode, language: Language) -> SgNode | None:
    parent = node.parent()
    while parent is not None and parent.kind() in WRAPPERS:
        parent = parent.parent()
    place = language.named_by.get(parent.kind()) if parent is not None else None
    return _named(parent, place) if parent is not None and place else None


def _named(node: SgNode, places: str, through: str = "") -> SgNode | None:
    """The name in the first of *places* that *node* has.

    With *through*, only where one of those stands around it.
    """
    for place in places.split():
        part = node.field(place) or next(
            (child for child in node.children() if child.kind() == place), None
        )
        if part is not None:
            return _innermost(part, through.split())
    return None


def _innermost(node: SgNode, through: list[str]) -> SgNode | None:
    around = ""
    while (kind := node.kind()) in STEPS:
        around = kind if kind in DECLARATORS else around
        part = _part(node, kind)
        if part is None or (kind in COMPUTED and part.kind() != "string"):
            return None
        node = part
    is_wanted = not through or around in through or kind in through
    return node if is_wanted and kind not in PATTERNS else None


def _part(node: SgNode, kind: str) -> SgNode | None:
    if kind == "binary_operator":  # a guard behind the head, or the definition of an operator
        operator = node.field("operator")
        return node.field("left") if operator is None or operator.text() == "when" else operator
    if STEPS[kind]:
        return node.field(STEPS[kind])
    parts = [child for child in node.children() if child.is_named()]
    return (
        parts[0] if parts and (len(parts) == 1 or kind != "string") else None
    )  # no string with escapes is a name


def _text(name: SgNode) -> str:
    kind, text = name.kind(), name.text()
    if kind == "operator_cast":
        parameters = name.find(kind="abstract_function_declarator")
        end = (
            None
            if parameters is None
            else parameters.range().start.index - name.range().start.index
        )
        text = text[:end]
    if kind == "operator_name":
        text = f"operator {text.removeprefix('operator').strip()}"
    return " ".join(text.strip("`").split())
