"""The languages that can be folded: file names, node kinds that define a name, places of the name.

Data only. The kinds are those of the grammars inside ast-grep-py, which crashes when it is asked
for a language that is not in this table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

DefinitionType: TypeAlias = Literal["class", "interface", "type", "function"]
"""The type of a definition, the same in all languages.

Methods, constructors and accessors are functions; structs, protocols and traits are interfaces;
enums and aliases are types.
"""


@dataclass(frozen=True, slots=True)
class Language:
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
    names: Mapping[str, str] = field(default_factory=dict)
    """Kind of definition → the fields or kinds of children one of which is its name instead."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """Kind of definition → what belongs to its name and is put before it."""
    told_by: Mapping[str, DefinitionType] = field(default_factory=dict)
    """Kind of a child, mostly a keyword → the type it makes of a kind that has several types."""
    named_by: Mapping[str, str] = field(default_factory=dict)
    """Kind of a value's parent → the part of it that names the value: ``x = function () {}``."""
    calls: Mapping[str, DefinitionType] = field(default_factory=dict)
    """Macro → what a call of it defines, in a language whose definitions are calls."""
    through: Mapping[str, str] = field(default_factory=dict)
    """Kind → what must be directly around the name.

    A declaration is one of a function, or of something else.
    """
    bodied: str = ""
    """Kinds that define something only where they have a body; elsewhere they mention it."""
    inside: Mapping[str, str] = field(default_factory=dict)
    """Kind → the only parents below which it defines something that is more than local."""
    outside: Mapping[str, str] = field(default_factory=dict)
    """Kind → the ancestor below which it defines nothing of interest."""
    keywords: Mapping[str, DefinitionType] = field(default_factory=dict)
    """Keyword → the type of the name after it, where broken syntax gives no definition."""
    unparsed: str = ""
    """Kind that the parser leaves as bare words, such as a macro's body; it may have keywords."""
    has_macros: bool = False
    """Whether macros may hide definitions from the parser; where it fails, they are left out."""
    has_locals: bool = True
    """Whether functions within functions are listed too."""
    openings: Mapping[str, str] = field(default_factory=dict)
    """What a view that begins within a file may lack → the pattern of its first line then."""
    misread: str = ""
    """Kinds that a statement after such an opening resembles, unless they have a body."""
    else_as: str = ""
    """The grammar to try as well where this one finds errors."""

    def kinds(self) -> Iterator[tuple[str, DefinitionType]]:
        """Every kind of node that defines a name, with the type of what it defines."""
        rows: tuple[tuple[str, DefinitionType], ...] = (
            (self.classes, "class"),
            (self.interfaces, "interface"),
            (self.types, "type"),
            (self.functions, "function"),
        )
        for kinds, type_ in rows:
            for kind in kinds.split():
                yield kind, type_


STEPS: Mapping[str, str] = {
    # C and C++: from the outer declarator to the name
    "function_declarator": "declarator",
    "pointer_declarator": "declarator",
    "array_declarator": "declarator",
    "reference_declarator": "",
    "parenthesized_declarator": "",
    "attributed_declarator": "",
    "qualified_identifier": "name",
    "template_function": "name",
    "template_method": "name",
    "template_type": "name",
    "dependent_name": "",
    # Rust: from the type of an impl to its name
    "generic_type": "type",
    "reference_type": "type",
    "pointer_type": "type",
    "array_type": "element",
    "dynamic_type": "trait",
    "scoped_type_identifier": "name",
    # JavaScript, Lua, Ruby: the last part of a path
    "member_expression": "property",
    "subscript_expression": "index",
    "non_null_expression": "",
    "dot_index_expression": "field",
    "bracket_index_expression": "field",
    "method_index_expression": "method",
    "variable_list": "name",
    "scope_resolution": "name",
    # Haskell: an operator defined between its arguments, or named in parentheses
    "infix": "operator",
    "infix_id": "",
    "prefix_id": "",
    # Elixir: the head of a definition, without its guard and its arguments
    "arguments": "",
    "call": "target",
    "binary_operator": "left",
    "unary_operator": "operand",
    # string as a name
    "string": "",
}
"""Kind of a node that contains more than the name → the field that leads to it.

"" is the first named child.
"""

_SCRIPT_NAMES = {
    "variable_declarator": "name",
    "assignment_expression": "left",
    "pair": "key",
    "field_definition": "property",
    "public_field_definition": "name",
    "property_signature": "name",
}
_SCRIPT_OPENINGS = {
    "/*": r"\s+\*",
    "class _{": r"[\s)\]}]",
    "class _{_(){": r"[\s)\]}]",
    "class _{_(){{": r"[\s)\]}]",
}
_SCRIPT_WORDS: Mapping[str, DefinitionType] = {
    "class": "class",
    "interface": "interface",
    "function": "function",
}
_TYPESCRIPT = Language(
    "typescript",
    "ts mts cts",
    classes="class_declaration abstract_class_declaration class",
    interfaces="interface_declaration",
    types="type_alias_declaration enum_declaration",
    functions="function_declaration generator_function_declaration function_signature"
    " method_definition method_signature abstract_method_signature construct_signature"
    " function_expression generator_function arrow_function function_type",
    names={"construct_signature": "new"},
    named_by=_SCRIPT_NAMES,
    keywords=_SCRIPT_WORDS,
    openings=_SCRIPT_OPENINGS,
    misread="method_signature",
)
_C_FUNCTIONS = dict.fromkeys(
    ("function_definition", "declaration", "field_declaration"), "declarator"
)
_C_SCOPES = (
    "translation_unit declaration_list linkage_specification preproc_if preproc_ifdef"
    " preproc_else preproc_elif preproc_elifdef ERROR"
)
_C_WORDS: Mapping[str, DefinitionType] = {
    "class": "class",
    "struct": "interface",
    "union": "type",
    "enum": "type",
}

LANGUAGES: tuple[Language, ...] = (
    Language(
        "python",
        "py pyi pyw",
        classes="class_definition",
        types="type_alias_statement",
        functions="function_definition",
        names={"type_alias_statement": "left"},
        keywords={"class": "class", "def": "function"},
        has_locals=False,
        openings={'"""': ""},
    ),
    Language(
        "javascript",
        "js jsx mjs cjs",
        classes="class_declaration class",
        functions="function_declaration generator_function_declaration method_definition"
        " function_expression generator_function arrow_function",
        named_by=_SCRIPT_NAMES,
        keywords=_SCRIPT_WORDS,
        openings=_SCRIPT_OPENINGS,
        else_as="tsx",  # types by Flow are close to those of TypeScript
    ),
    _TYPESCRIPT,
    replace(_TYPESCRIPT, name="tsx", extensions="tsx"),
    Language(
        "go",
        "go",
        types="type_spec type_alias",
        functions="function_declaration method_declaration method_elem",
        told_by={"struct_type": "interface", "interface_type": "interface"},
        keywords={"func": "function", "type": "type"},
        openings={"func _(){": r"[\s)}]", "type _ interface{": r"\s"},
    ),
    Language(
        "rust",
        "rs",
        classes="impl_item",
        interfaces="struct_item trait_item",
        types="enum_item union_item type_item",
        functions="function_item function_signature_item",
        names={"impl_item": "type"},
        outside={"type_item": "impl_item"},
        keywords={"struct": "interface", "trait": "interface", "enum": "type", "fn": "function"},
        unparsed="token_tree",
    ),
    Language(
        "java",
        "java",
        classes="class_declaration record_declaration",
        interfaces="interface_declaration annotation_type_declaration",
        types="enum_declaration",
        functions="method_declaration constructor_declaration compact_constructor_declaration"
        " annotation_type_element_declaration",
        keywords={"class": "class", "record": "class", "interface": "interface", "enum": "type"},
    ),
    Language(
        "kotlin",
        "kt kts",
        classes="class_declaration object_declaration companion_object",
        types="type_alias",
        functions="function_declaration secondary_constructor",
        names={
            "class_declaration": "type_identifier",
            "object_declaration": "type_identifier",
            "companion_object": "type_identifier",
            "type_alias": "type_identifier",
            "function_declaration": "simple_identifier",
            "secondary_constructor": "constructor",
        },
        told_by={"interface": "interface", "enum": "type"},
        keywords={"class": "class", "object": "class", "interface": "interface", "fun": "function"},
    ),
    Language(
        "swift",
        "swift",
        classes="class_declaration",
        interfaces="protocol_declaration",
        types="typealias_declaration",
        functions="function_declaration protocol_function_declaration init_declaration"
        " deinit_declaration subscript_declaration",
        names={"deinit_declaration": "deinit", "subscript_declaration": "subscript"},
        told_by={"struct": "interface", "enum": "type"},
        keywords={
            "class": "class",
            "struct": "interface",
            "protocol": "interface",
            "enum": "type",
            "func": "function",
        },
    ),
    Language(
        "scala",
        "scala sc",
        classes="class_definition object_definition package_object",
        interfaces="trait_definition",
        types="enum_definition type_definition",
        functions="function_definition function_declaration",
        keywords={
            "class": "class",
            "object": "class",
            "trait": "interface",
            "enum": "type",
            "def": "function",
        },
    ),
    Language(
        "c",
        "c",
        interfaces="struct_specifier",
        types="union_specifier enum_specifier type_definition",
        functions=" ".join(_C_FUNCTIONS),
        names={**_C_FUNCTIONS, "type_definition": "declarator"},
        through=dict.fromkeys(_C_FUNCTIONS, "function_declarator"),
        bodied="struct_specifier union_specifier enum_specifier",
        inside={"declaration": _C_SCOPES},
        has_macros=True,
        keywords=_C_WORDS,
    ),
    Language(
        "cpp",
        "cpp cc cxx c++ hpp hh hxx h++ h inl ipp tpp cu cuh",
        classes="class_specifier",
        interfaces="struct_specifier concept_definition",
        types="union_specifier enum_specifier type_definition alias_declaration",
        functions=" ".join(_C_FUNCTIONS),
        names={**_C_FUNCTIONS, "type_definition": "declarator"},
        through=dict.fromkeys(_C_FUNCTIONS, "function_declarator operator_cast"),
        bodied="class_specifier struct_specifier union_specifier enum_specifier",
        inside={"declaration": f"{_C_SCOPES} field_declaration_list template_declaration"},
        keywords=_C_WORDS,
        has_macros=True,
    ),
    Language(
        "csharp",
        "cs csx",
        classes="class_declaration record_declaration",
        interfaces="interface_declaration struct_declaration",
        types="enum_declaration delegate_declaration",
        functions="method_declaration constructor_declaration destructor_declaration"
        " operator_declaration conversion_operator_declaration local_function_statement",
        names={"operator_declaration": "operator", "conversion_operator_declaration": "type"},
        prefixes={
            "destructor_declaration": "~",
            "operator_declaration": "operator ",
            "conversion_operator_declaration": "operator ",
        },
        told_by={"struct": "interface"},
        keywords={
            "class": "class",
            "record": "class",
            "interface": "interface",
            "struct": "interface",
            "enum": "type",
        },
    ),
    Language(
        "ruby",
        "rb rake gemspec ru",
        classes="class module",
        functions="method singleton_method",
        keywords={"class": "class", "module": "class", "def": "function"},
    ),
    Language(
        "php",
        "php phtml php5 inc",
        classes="class_declaration",
        interfaces="interface_declaration trait_declaration",
        types="enum_declaration",
        functions="function_definition method_declaration",
        keywords={
            "class": "class",
            "interface": "interface",
            "trait": "interface",
            "function": "function",
        },
    ),
    Language(
        "lua",
        "lua",
        functions="function_declaration function_definition",
        named_by={"assignment_statement": "variable_list", "field": "name"},
        keywords={"function": "function"},
    ),
    Language(
        "bash",
        "sh bash zsh ksh bats",
        functions="function_definition",
        keywords={"function": "function"},
    ),
    Language(
        "elixir",
        "ex exs",
        calls={
            "defmodule": "class",
            "defimpl": "class",
            "defprotocol": "interface",
            "def": "function",
            "defp": "function",
            "defmacro": "function",
            "defmacrop": "function",
            "defguard": "function",
            "defguardp": "function",
            "defdelegate": "function",
            "defn": "function",
            "defnp": "function",
        },
        names={"call": "arguments"},
    ),
    Language(
        "haskell",
        "hs",
        interfaces="class",
        types="data_type newtype type_synonym type_family data_family",
        functions="function bind signature",
        names={"function": "name infix", "bind": "name infix"},
        inside={
            "function": "declarations class_declarations instance_declarations",
            "bind": "declarations class_declarations instance_declarations",
            "signature": "declarations class_declarations instance_declarations",
        },
    ),
    Language(
        "solidity",
        "sol",
        classes="contract_declaration library_declaration",
        interfaces="interface_declaration struct_declaration",
        types="enum_declaration user_defined_type_definition",
        functions="function_definition modifier_definition constructor_definition"
        " fallback_receive_definition",
        names={
            "constructor_definition": "constructor",
            "fallback_receive_definition": "receive fallback",
        },
        keywords={
            "contract": "class",
            "library": "class",
            "interface": "interface",
            "struct": "interface",
            "function": "function",
        },
    ),
)

_BY_EXTENSION = {
    extension: language for language in LANGUAGES for extension in language.extensions.split()
}
_BY_NAME = {language.name: language for language in LANGUAGES}


def language_of(path: str) -> Language | None:
    """The language of the file at *path*, by its extension; None for one that cannot be folded."""
    _, dot, extension = path.rpartition(".")
    if not dot:
        return None
    return _BY_EXTENSION.get(extension.lower())


def language_called(name: str) -> Language:
    """The language of that name. Raises KeyError for one that is not in the table."""
    return _BY_NAME[name]
