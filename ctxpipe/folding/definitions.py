"""What a source text defines: names and lines, found in its syntax tree by a table of languages."""

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
    """What *text*, the file at *path* or a view of it, defines, from top to bottom.

    None in an unknown language. Lines are the file's own where a view numbers them. Broken syntax
    yields what can be read. Hostile text of a few kilobytes can block the parser, and with it the
    interpreter, for minutes: call this in a process under limits.
    """
    language = language_of(path)
    if language is None:
        return None
    source, numbers = without_gutter(text)
    lines = [line if len(line) <= LONGEST_LINE else "" for line in source.split("\n")]
    found = _read("\n".join(lines), language)
    return tuple(each._replace(line=numbers[each.line - 1]) for each in found)


def definition_rows(texts: Sequence[str]) -> Iterator[Definitions]:
    """The definitions of each file. *texts* are path, text, path, text, …"""
    for path, text in zip(texts[::2], texts[1::2], strict=True):
        yield definitions(path, text) or ()


# Views --------------------------------------------------------------------------------------------

SAMPLE = 4000  # characters: a view is numbered from its beginning or not at all
# A longer one is data or minified, and finding a node's position takes as long as its line is.
LONGEST_LINE = 5000


def without_gutter(text: str) -> tuple[str, Sequence[int]]:
    """*text* without what a view puts around a file and before its lines, and their numbers.

    The gutters recognized are those of ``cat -n`` and ``nl``, ``12→``, ``12: `` and ``12|``. Lines
    without a number, such as a tool's remarks, become empty. Where nothing tells the numbers, they
    count from 1.
    """
    _, text, first_line = view(text)
    if _is_numbered(text[:SAMPLE]):
        rows = [NUMBERED_LINE.match(line) for line in text.split("\n")]
        code = [row[3] if row else "" for row in rows]
        if all(line.startswith(" ") for line in code if line):
            code = [line[1:] for line in code]  # the blank after "12:" is the gutter's
        return "\n".join(code), [int(row[1]) if row else 0 for row in rows]
    first = 1 if first_line is None else first_line
    return text, range(first, first + text.count("\n") + 1)


def _is_numbered(sample: str) -> bool:
    rows = list(NUMBERED_LINE.finditer(sample))
    text_lines = list(filter(str.strip, sample.splitlines()))
    if len(rows) < 2 or 2 * len(rows) < len(text_lines) or len({row[2] for row in rows}) > 1:
        return False
    return all(int(one[1]) < int(other[1]) for one, other in pairwise(rows))


# Parsing ------------------------------------------------------------------------------------------


def _read(source: str, language: Language) -> list[Definition]:
    """The definitions in the best reading of *source*; the first one without errors is the last."""
    found_by_score: dict[tuple[int, int], list[Definition]] = {}
    for reading, as_language in _readings(source, language):
        tree = _parse(reading, as_language)
        errors = _error_chars(tree)
        is_doubtful = errors > 0 or reading is not source
        found = _find_definitions(tree, as_language, is_doubtful)
        found_by_score.setdefault((len(found), -errors), found)
        if not errors:
            break
    return found_by_score[max(found_by_score)]


def _readings(source: str, language: Language) -> Iterator[tuple[str, Language]]:
    """*source*, and other ways to read it, all with the same line numbers."""
    yield source, language
    if language.has_macros:
        yield without_macros(source), language
    if language.else_as:
        yield source, languages()[language.else_as]
    beginning = source.lstrip("\r\n")
    cautious = language._replace(bodied=f"{language.bodied} {language.misread}")
    for opening, first_line in language.openings.items():
        if re.match(first_line, beginning):
            yield opening + source, cautious


def _parse(source: str, language: Language) -> SgNode:
    from ast_grep_py import SgRoot

    return SgRoot(source.encode(errors="replace").decode(), language.name).root()


def _error_chars(tree: SgNode) -> int:
    """How many characters belong to no construct of the language."""
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
    """C or C++ with blanks for preprocessor conditionals and for the macros around declarations."""
    return MACROS.sub(lambda macro: re.sub(r"[^\n]", " ", macro[0]), source)


# Definitions --------------------------------------------------------------------------------------

STATEMENTS = (
    "await case catch do else export for function if import return super switch throw try while"
    " with yield"
)
# The apparent names of statements that were misread as definitions.
NO_NAMES = frozenset({"_", *STATEMENTS.split()})
# Characters; a longer one is computed: a key that is an expression, the type that an impl is for.
LONGEST_NAME = 100
# Not a name, or one that would break out of the block that it is printed in.
ODD = re.compile(r"[{};\n]|system-reminder")


def _find_definitions(tree: SgNode, language: Language, is_doubtful: bool) -> list[Definition]:
    found = list(_definitions_by_kind(tree, language))
    if is_doubtful or language.unparsed:
        found += _definitions_by_keyword(tree, language)
    if is_doubtful:
        found = [each for each in found if each.name not in NO_NAMES]
    return list(dict.fromkeys(sorted(found, key=lambda each: each.line)))


def _definitions_by_kind(tree: SgNode, language: Language) -> Iterator[Definition]:
    """The definitions that are nodes of the tree."""
    types = language.kinds()
    bodied = language.bodied.split()
    end_of_function = 0
    for node in tree.find_all(any=_rules(language.name)):
        span = node.range()
        if span.start.index < end_of_function:
            continue
        kind = node.kind()
        if kind in bodied and node.field("body") is None:
            continue
        type_ = _definition_type(node, types, language)
        if type_ == "function" and not language.has_locals:
            end_of_function = span.end.index
        for name in _names(node, language):
            text = language.prefixes.get(kind, "") + _name_text(name)
            if 0 < len(text) <= LONGEST_NAME and not ODD.search(text):
                yield Definition(type_, text, name.range().start.line + 1)


def _definitions_by_keyword(tree: SgNode, language: Language) -> Iterator[Definition]:
    """The names after a keyword where the parser could not build a definition, or did not try."""
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
    """The parser's rules for every kind of definition that the language has."""
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
    known: list[Rule] = []
    for rule in rules:
        with suppress(RuntimeError):  # a kind that a later grammar renames must not cost the rest
            empty.find(any=[rule])
            known.append(rule)
    return known


def _definition_type(
    node: SgNode, types: Mapping[str, DefinitionType], language: Language
) -> DefinitionType:
    if language.calls:
        target = node.field("target")
        if target is not None:
            return language.calls[target.text()]
    type_ = types[node.kind()]
    if type_ == "function":
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
    """The names of a definition: the target's that it is assigned to, if any, and its own."""
    target = _target_name(node, language) if language.named_by else None
    if target is not None:
        yield target
    kind = node.kind()
    own = _find_name(node, language.names.get(kind, "name"), language.through.get(kind, ""))
    if own is not None and (target is None or target.text() != own.text()):
        yield own


def _target_name(node: SgNode, language: Language) -> SgNode | None:
    parent = node.parent()
    while parent is not None and parent.kind() in WRAPPERS:
        parent = parent.parent()
    if parent is None:
        return None
    return _find_name(parent, language.named_by.get(parent.kind(), ""))


def _find_name(node: SgNode, places: str, through: str = "") -> SgNode | None:
    """The name in the first of *places* that *node* has.

    With *through*, only where one of those is around it.
    """
    for place in places.split():
        part = node.field(place)
        if part is None:
            part = next((child for child in node.children() if child.kind() == place), None)
        if part is not None:
            return _innermost(part, through.split())
    return None


# Grammars wrap a name in what is said about it: in C a function's name is inside as many
# declarators as its type has parts, in JavaScript at the end of a path, in Haskell between its
# arguments. So the walk goes from the field of the name inwards, a step of the table at a time,
# until a node of another kind is left. It gives up where the name is computed (`a[i]`), where one
# statement binds several names, and where *through* asks for a declarator that was not on the way:
# only that tells the declaration of a function from that of a variable.
def _innermost(node: SgNode, through: list[str]) -> SgNode | None:
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
    is_elsewhere = through and declarator not in through and kind not in through
    if kind in PATTERNS or is_elsewhere:
        return None
    return node


def _next_step(node: SgNode, kind: str) -> SgNode | None:
    if kind == "binary_operator":  # a guard after the head, or the definition of an operator
        operator = node.field("operator")
        if operator is None or operator.text() == "when":
            return node.field("left")
        return operator
    if field := STEPS[kind]:
        return node.field(field)
    parts = [child for child in node.children() if child.is_named()]
    if not parts or (kind == "string" and len(parts) > 1):  # no string with escapes is a name
        return None
    return parts[0]


def _name_text(name: SgNode) -> str:
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
