"""Find the names that a source text defines, and their lines, in its syntax tree.

The table in `languages` says which kinds of node define a name. Example: for

    12  class Parser:
    13      def parse(self): ...

the definitions are ``("class", "Parser", 12)`` and ``("function", "parse", 13)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from ..providers.agent_tools import NUMBERED_LINE, view
from .languages import STEPS, DefinitionType, Language, language_of, languages

if TYPE_CHECKING:
    from ast_grep_py import Rule, SgNode


class Definition(NamedTuple):
    """A name that a source defines, and the line of that name, counted from 1."""

    type: DefinitionType
    name: str
    line: int


Definitions: TypeAlias = tuple[Definition, ...]


def definitions(path: str, text: str) -> Definitions | None:
    """Return the names that *text* defines, from top to bottom; None for an unknown language.

    *text* is the file at *path*, or a view of it as a tool shows it. If the view numbers its lines,
    these numbers are returned. Text with syntax errors gives the names that can be recognized.

    Hostile text of a few kilobytes can block the parser, and with it the interpreter, for minutes.
    Call this function in a process with limits.
    """
    language = language_of(path)
    if language is None:
        return None
    source, numbers = without_gutter(text)
    lines = [line if len(line) <= LONGEST_LINE else "" for line in source.split("\n")]
    in_view = _read("\n".join(lines), language)
    return tuple(item._replace(line=numbers[item.line - 1]) for item in in_view)


def definition_rows(texts: Sequence[str]) -> Iterator[Definitions]:
    """Yield the definitions of each file. *texts* are path, text, path, text, …"""
    for path, text in zip(texts[::2], texts[1::2], strict=True):
        yield definitions(path, text) or ()


# Views --------------------------------------------------------------------------------------------

SAMPLE = 4000  # characters; if a view numbers its lines, it does so from the beginning
# A longer line is data or minified code, and the time to locate a node grows with its line.
LONGEST_LINE = 5000


def without_gutter(text: str) -> tuple[str, Sequence[int]]:
    """Return the source in a view of a file, and the line number of each of its lines.

    The text around the file and the numbers before its lines are removed. Recognized are the
    gutters of ``cat -n`` and ``nl``, ``12→``, ``12: `` and ``12|``. Lines without a number, such as
    a tool's remarks, become empty. If the view has no numbers, lines count from 1.
    """
    _, text, first_line = view(text)
    if _is_numbered(text[:SAMPLE]):
        rows = [NUMBERED_LINE.match(line) for line in text.split("\n")]
        code = [row[3] if row else "" for row in rows]
        if all(line.startswith(" ") for line in code if line):
            code = [line[1:] for line in code]  # the blank after "12:" belongs to the gutter
        return "\n".join(code), [int(row[1]) if row else 0 for row in rows]
    first = 1 if first_line is None else first_line
    return text, range(first, first + text.count("\n") + 1)


def _is_numbered(sample: str) -> bool:
    """Return True if most lines of *sample* begin with a number, rising and in one style."""
    rows = list(NUMBERED_LINE.finditer(sample))
    text_lines = [line for line in sample.splitlines() if line.strip()]
    if len(rows) < 2 or 2 * len(rows) < len(text_lines):
        return False
    styles = {row[2] for row in rows}
    if len(styles) > 1:
        return False
    return all(int(row[1]) < int(next_row[1]) for row, next_row in pairwise(rows))


# Parsing ------------------------------------------------------------------------------------------


def _read(source: str, language: Language) -> list[Definition]:
    """Return the definitions in the best reading of *source*.

    The best reading has the most definitions, then the fewest errors. After one without errors no
    other is tried.
    """
    by_score: dict[tuple[int, int], list[Definition]] = {}
    for reading, as_language in _readings(source, language):
        tree = _parse(reading, as_language)
        errors = _error_chars(tree)
        is_doubtful = errors > 0 or reading is not source
        results = _find_definitions(tree, as_language, is_doubtful=is_doubtful)
        by_score.setdefault((len(results), -errors), results)
        if not errors:
            break
    return by_score[max(by_score)]


def _readings(source: str, language: Language) -> Iterator[tuple[str, Language]]:
    """Yield *source* and other ways to read it, all with the same line numbers."""
    yield source, language
    if language.has_macros:
        yield without_macros(source), language
    if language.other_grammar:
        yield source, languages()[language.other_grammar]
    beginning = source.lstrip("\r\n")
    need_body = f"{language.kinds_with_body} {language.kinds_after_opening}"
    cautious = language._replace(kinds_with_body=need_body)
    for opening, first_line in language.openings.items():
        if re.match(first_line, beginning):
            yield opening + source, cautious


def _parse(source: str, language: Language) -> SgNode:
    """Return the root of the syntax tree of *source*; it also exists for invalid code."""
    from ast_grep_py import SgRoot

    return SgRoot(source.encode(errors="replace").decode(), language.name).root()


def _error_chars(tree: SgNode) -> int:
    """Return the number of characters that belong to no construct of the language."""
    spans = [node.range() for node in tree.find_all(kind="ERROR")]
    return sum(span.end.index - span.start.index + 1 for span in spans)


MACRO = r"[A-Z][A-Z0-9_]{2,}(?:[ \t]*\([^()\n]*\))?"
MACROS = re.compile(
    rf"""
    ^[ \t]*(?:
        # a conditional: all its branches stay
        \#[ \t]*(?:if|elif|else|endif)[^\n]*(?:(?<=\\)\n[^\n]*)*
        # a macro that is a line
      | {MACRO}[ \t]*;?[ \t]*$
        # macros before a declaration,
      | (?:{MACRO}[ \t]+)+(?=[\w:<~])
    )
    | (?<![ \t])(?=[ \t]+[A-Z][A-Z0-9_]{{2}})(?:
        # within it,
        (?:(?<=\bstatic)|(?<=\binline)|(?<=\bconstexpr)|(?<=\bvirtual)|(?<=\bextern)|(?<=\bfriend)
          |(?<=>))
        (?:[ \t]+{MACRO})+(?=[ \t]+[\w:<~])
      | (?:(?<=\bclass)|(?<=\bstruct))(?:[ \t]+{MACRO})+(?=[ \t]+\w[\w:<>,\s]{{0,200}}[:{{;])
        # and after its parameters
      | (?:(?<=\))|(?<=\bconst)|(?<=\boverride))[ \t]+{MACRO}(?=\s*[{{;])
    )
    """,
    re.MULTILINE | re.VERBOSE,
)


def without_macros(source: str) -> str:
    """Return C or C++ *source* with conditionals and macros around declarations blanked out."""
    return MACROS.sub(lambda macro: re.sub(r"[^\n]", " ", macro[0]), source)


# Definitions --------------------------------------------------------------------------------------

STATEMENTS = (
    "await case catch do else export for function if import return super switch throw try while"
    " with yield"
)
# Statements that a parser misreads as definitions of these names.
NO_NAMES = frozenset({"_", *STATEMENTS.split()})
# Characters; a longer name is computed, such as a key that is an expression.
LONGEST_NAME = 100
# Not a name, or one that would end the block that it is printed in.
ODD = re.compile(r"[{};\n]|system-reminder")


def _find_definitions(tree: SgNode, language: Language, *, is_doubtful: bool) -> list[Definition]:
    """Return the definitions in *tree* by line; a doubtful tree has errors or was rewritten."""
    results = list(_definitions_by_kind(tree, language))
    if is_doubtful or language.unparsed:
        results += _definitions_by_keyword(tree, language)
    if is_doubtful:
        results = [item for item in results if item.name not in NO_NAMES]
    return list(dict.fromkeys(sorted(results, key=lambda item: item.line)))


def _definitions_by_kind(tree: SgNode, language: Language) -> Iterator[Definition]:
    """Yield the definitions in *tree* that the table of *language* names by their kind of node.

    Functions inside a function are skipped unless the language lists them; so are declarations
    without a body, and odd or very long names. Lines count from 1.
    """
    types = language.kinds()
    kinds_with_body = language.kinds_with_body.split()
    end_of_function = 0
    for node in tree.find_all(any=_rules(language.name)):
        span = node.range()
        if span.start.index < end_of_function:
            continue
        kind = node.kind()
        if kind in kinds_with_body and node.field("body") is None:
            continue
        type_ = _definition_type(node, types, language)
        if type_ == "function" and not language.has_locals:
            end_of_function = span.end.index
        for name in _names(node, language):
            text = language.prefixes.get(kind, "") + _name_text(name)
            if 0 < len(text) <= LONGEST_NAME and not ODD.search(text):
                yield Definition(type_, text, name.range().start.line + 1)


def _definitions_by_keyword(tree: SgNode, language: Language) -> Iterator[Definition]:
    """Yield the names after keywords in parts of which the parser made no definition."""
    rules: list[Rule] = [{"kind": "ERROR"}]
    if language.unparsed:
        keywords = "|".join(language.keywords)
        rules.append({"kind": language.unparsed, "regex": rf"\b({keywords})\s+\w"})
    for node in tree.find_all(any=rules):
        leaves = [child for child in node.children() if child.is_leaf()]
        for keyword, name in pairwise(leaves):
            type_ = language.keywords.get(keyword.text())
            if type_ and re.fullmatch(r"[^\W\d]\w*[?!]?", name.text()):
                yield Definition(type_, name.text(), name.range().start.line + 1)


@cache
def _rules(language: str) -> list[Rule]:
    """Return the parser's rules for every kind of definition in *language*."""
    table = languages()[language]
    rules: list[Rule] = []
    for kind in table.kinds():
        rule: Rule = {"kind": kind}
        if kind in table.inside:
            rule["inside"] = {"any": [{"kind": parent} for parent in table.inside[kind].split()]}
        if kind in table.outside:
            rule["not"] = {"inside": {"kind": table.outside[kind], "stopBy": "end"}}
        rules.append(rule)
    if table.calls:
        macros = "|".join(table.calls)
        rules.append({"kind": "call", "has": {"field": "target", "regex": f"^({macros})$"}})
    empty = _parse("", table)
    valid_rules: list[Rule] = []
    for rule in rules:
        # A later grammar may rename a kind. The other rules must still work.
        with suppress(RuntimeError):
            empty.find(any=[rule])
            valid_rules.append(rule)
    return valid_rules


def _definition_type(
    node: SgNode, types: Mapping[str, DefinitionType], language: Language
) -> DefinitionType:
    """Return the type of the definition *node*; *types* has that of each kind of node."""
    if language.calls:
        target = node.field("target")
        if target is not None:
            return language.calls[target.text()]
    type_ = types[node.kind()]
    if type_ == "function":
        return type_
    for child in node.children():
        if child.kind() in language.type_by_child:
            return language.type_by_child[child.kind()]
    return type_


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
    """Yield the names of a definition: of the target it is assigned to, if any, and its own."""
    target = _target_name(node, language) if language.name_in_parent else None
    if target is not None:
        yield target
    kind = node.kind()
    own = _find_name(node, language.names.get(kind, "name"), language.through.get(kind, ""))
    if own is not None and (target is None or target.text() != own.text()):
        yield own


def _target_name(node: SgNode, language: Language) -> SgNode | None:
    """Return the name that the value *node* is assigned to; None if it is assigned to none."""
    parent = node.parent()
    while parent is not None and parent.kind() in WRAPPERS:
        parent = parent.parent()
    if parent is None:
        return None
    return _find_name(parent, language.name_in_parent.get(parent.kind(), ""))


def _find_name(node: SgNode, places: str, through: str = "") -> SgNode | None:
    """Return the name in the first of *places* that *node* has; None if it has none of them.

    *places* are fields or kinds of children, separated by blanks. With *through*, the name counts
    only inside a node of one of these kinds.
    """
    for place in places.split():
        part = node.field(place)
        if part is None:
            part = next((child for child in node.children() if child.kind() == place), None)
        if part is not None:
            return _innermost(part, through.split())
    return None


def _innermost(node: SgNode, through: list[str]) -> SgNode | None:
    """Return the name inside *node*; None if it is computed, or not inside one of *through*."""
    # Grammars wrap a name in other nodes. In C the name of a function is inside as many declarators
    # as its type has parts (`int (*f)(void)`), in JavaScript it is at the end of a path (`a.b.c`),
    # in Haskell between the arguments. The loop goes inwards, a step of the table at a time, until
    # it meets a node of another kind. There is no name if the place is computed (`a[i]`), if one
    # statement binds several names, or if *through* asks for a declarator that was not passed: only
    # that distinguishes the declaration of a function from that of a variable.
    declarator = ""
    kind = node.kind()
    while kind in STEPS:
        if kind in DECLARATORS:
            declarator = kind
        part = _next_step(node, kind)
        if part is None or (kind in COMPUTED and part.kind() != "string"):
            return None
        node = part
        kind = part.kind()
    if kind in PATTERNS:
        return None
    if through and declarator not in through and kind not in through:
        return None
    return node


def _next_step(node: SgNode, kind: str) -> SgNode | None:
    """Return the part of *node* that leads to its name; None if there is no name in it."""
    if kind == "binary_operator":  # a guard after the head, or the definition of an operator
        operator = node.field("operator")
        if operator is None or operator.text() == "when":
            return node.field("left")
        return operator
    if field := STEPS[kind]:
        return node.field(field)
    parts = [child for child in node.children() if child.is_named()]
    if not parts:
        return None
    if kind == "string" and len(parts) > 1:  # a string with escapes is not a name
        return None
    return parts[0]


def _name_text(name: SgNode) -> str:
    """Return the text of *name* as it is listed: ``operator +`` for an operator of C++."""
    kind = name.kind()
    text = name.text()
    if kind == "operator_cast":
        parameters = name.find(kind="abstract_function_declarator")
        if parameters is not None:
            start = name.range().start.index
            text = text[: parameters.range().start.index - start]
    if kind == "operator_name":
        text = f"operator {text.removeprefix('operator')}"
    return " ".join(text.strip("`").split())
