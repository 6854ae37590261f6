"""How much a caller of ctxpipe must know at once: parameters of functions, fields of values."""

from __future__ import annotations

import ast

from syntax import Function, classes, functions

MOST_PARAMETERS = 10
MOST_FIELDS = 12

COMMAND = "a command: each parameter is an option that a user types"
REQUIRED = "a function of the requirements: every setting of its stage in one call"
EXEMPT_FUNCTIONS = {
    "gateway.options.common_options": COMMAND,
    "lab.commands.replay": COMMAND,
    "lab.survive.survive": COMMAND,
    "functions.compact.compact_messages": REQUIRED,
    "functions.truncate.smart_truncate": REQUIRED,
}

REPORT = "a report: a row of what happened, read field by field"
ROW = "a row of a table of data, of which most cells stay empty"
OPTIONS = "the options of a command, which reads them from here"
EXEMPT_CLASSES = {
    "journal.step.Step": "what one turn makes, which each part of the turn adds to",
    "turn.state.TurnRun": "what one turn needs, and what each of its steps has made of it",
    "folding.languages.Language": ROW,
    "diagnostics.prompts.Prompt": ROW,
    "gateway.record.GatewayTurn": REPORT,
    "lab.report.Figures": REPORT,
    "providers.cache_rules.CacheRules": ROW,
    "gateway.settings.GatewaySettings": OPTIONS,
    "stages.reports.Compacted": REPORT,
    "stages.reports.StageReport": REPORT,
    "testing.scripted.Received": REPORT,
}


def parameter_count(function: Function) -> int:
    """The parameters of *function* that a caller gives, ``*args`` and ``**kwargs`` as one each."""
    given = function.args
    positional = [parameter.arg for parameter in [*given.posonlyargs, *given.args]]
    if positional[:1] in (["self"], ["cls"]):
        positional = positional[1:]
    extra = [given.vararg, given.kwarg]
    return len(positional) + len(given.kwonlyargs) + sum(one is not None for one in extra)


def is_dataclass(definition: ast.ClassDef) -> bool:
    """Whether *definition* is decorated with ``@dataclass``, or is a NamedTuple."""
    decorators = map(ast.unparse, definition.decorator_list)
    if any(decorator.startswith("dataclass") for decorator in decorators):
        return True
    return any(ast.unparse(base) == "NamedTuple" for base in definition.bases)


def field_count(definition: ast.ClassDef) -> int:
    """The fields that *definition* declares itself."""
    return sum(
        isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation)
        for line in definition.body
    )


def test_no_function_takes_more_than_ten_parameters():
    many = {name for name, node in functions() if parameter_count(node) > MOST_PARAMETERS}

    assert many == set(EXEMPT_FUNCTIONS)


def test_no_value_has_more_than_twelve_fields():
    many = {
        name for name, node in classes() if is_dataclass(node) and field_count(node) > MOST_FIELDS
    }

    assert many == set(EXEMPT_CLASSES)


def test_parameters_are_counted_however_they_are_given():
    [method] = ast.parse("def f(self, a, /, b, *c, d, e=1, **f): ...").body

    assert isinstance(method, ast.FunctionDef)
    assert parameter_count(method) == 6


def test_fields_are_counted_without_constants_of_the_class():
    [value] = ast.parse("class V:\n    a: int\n    b: str = ''\n    c: ClassVar[int] = 1").body

    assert isinstance(value, ast.ClassDef)
    assert field_count(value) == 2
