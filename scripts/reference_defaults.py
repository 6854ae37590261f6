"""An extension of griffe that shows defaults as values in the generated reference.

A default that the environment may override is written ``setting(OFFLOAD_CHAR_THRESHOLD)`` in the
source, and others are names of constants. A reader of the reference wants the value: 100.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from importlib import import_module

import griffe

from ctxpipe import settings

SETTING = re.compile(r"setting\((\w+)\)")
OPTIONAL_SETTING = re.compile(r"optional_setting\(\w+\)")
LAMBDA = re.compile(r"field\(default_factory=lambda: (.+?)(?:, \w+=\w+)*\)")
FACTORY = re.compile(r"field\(default_factory=(\w+\.\w+)\)")
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")


class Defaults(griffe.Extension):
    """Replace defaults that are settings or constants by their values."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: object) -> None:
        """Replace the default of a field of a dataclass."""
        if isinstance(attr.parent, griffe.Class) and attr.value is not None:
            attr.value = default_value(str(attr.value), attr.module.path) or attr.value

    def on_function_instance(self, *, func: griffe.Function, **_: object) -> None:
        """Replace the defaults of the parameters of a function."""
        for parameter in func.parameters:
            if parameter.default is not None:
                value = default_value(str(parameter.default), func.module.path)
                parameter.default = value or parameter.default


def default_value(source: str, module: str) -> str | None:
    """Return the value of the default that is written as *source* in *module*.

    None if it is shown as it is written.
    """
    if OPTIONAL_SETTING.fullmatch(source):
        return "None"
    if match := SETTING.fullmatch(source):
        return spelled(getattr(settings, match[1]).default)
    if match := LAMBDA.fullmatch(source):
        return match[1]
    if match := FACTORY.fullmatch(source):
        return f"{match[1]}()"
    return constant_value(source, module)


def constant_value(name: str, module: str) -> str | None:
    """Return the value of the constant *name* of *module*; None if there is no such constant."""
    if not CONSTANT.fullmatch(name):
        return None
    try:
        constant = getattr(import_module(module), name)
    except (ImportError, AttributeError):  # the framework of an adapter is not installed
        return None
    return spelled(constant)


def spelled(value: object) -> str | None:
    """Return *value* as a program writes it, or None if it is no number, text, bool or None."""
    if isinstance(value, bool | str) or value is None:
        return repr(value)
    if isinstance(value, int):
        return f"{value:_}"
    if isinstance(value, float | Decimal | Fraction):
        return str(value)
    return None
