"""Settings that environment variables may override, with their defaults, and checks of settings.

An argument takes precedence over the environment, and the environment over the default. A variable
is read when the stage is created or the function is called, never at import. An empty value means
the default.
"""

from __future__ import annotations

import inspect
import math
import os
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from functools import cache, partial
from importlib import import_module
from numbers import Real
from types import FunctionType
from typing import Any, Generic, TypeVar

from ._logs import logger
from ._text import one_line
from .errors import SettingsError

__all__ = [
    "COMPACT_MAX_RETRIES",
    "COMPACT_OUTPUT_DIR",
    "COMPACT_THRESHOLD_RATIO",
    "CONTEXT_TOKEN_LIMIT",
    "DIRECT_OFFLOAD_CHAR_THRESHOLD",
    "MAX_RESTORE_FILES",
    "MAX_RESTORE_TOKENS_PER_FILE",
    "MAX_RESTORE_TOKENS_TOTAL",
    "OFFLOAD_CHAR_THRESHOLD",
    "OFFLOAD_RATIO_THRESHOLD",
    "STORE_SECONDS",
    "SUMMARY_MAX_WORDS",
    "SUMMARY_MODEL",
    "Setting",
    "optional_setting",
    "setting",
]

T = TypeVar("T", int, str, Decimal)


@dataclass(frozen=True, slots=True)
class Setting(Generic[T]):
    """A default that the environment variable *name* may override.

    A share is a number between 0 and 1. Another number is accepted, and logged once as a warning.
    """

    name: str
    default: T
    is_share: bool = False

    def __call__(self, argument: T | float | None = None) -> T:
        """Return *argument*, or else the environment's value, or else the default.

        Raises SettingsError, which names the variable, if the setting is a number and the value is
        not, or is a whole number below 0.
        """
        if argument is not None:
            return self._number(argument, self.name)
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        return self._number(text, f"the environment variable {self.name}")

    def in_environment(self) -> T | None:
        """Return the environment's value, or None if it is not set. Raises SettingsError."""
        if not os.environ.get(self.name, "").strip():
            return None
        return self()

    def _number(self, value: object, source: str) -> T:
        """Return *value* as a number of the default's type; *source* names it in the error.

        Raises SettingsError if it is no number, not finite, or an integer below 0.
        """
        kind = type(self.default)
        try:
            # A number is parsed from its text, so that 0.1 is exactly a tenth.
            parsed = kind(value if type(value) is kind else str(value))
        except (ValueError, InvalidOperation) as error:
            raise SettingsError(f"{source} is {excerpt(value)}, which is not a number") from error
        if isinstance(parsed, Decimal) and not parsed.is_finite():
            raise SettingsError(f"{source} is {excerpt(value)}, which is not a finite number")
        if isinstance(parsed, int) and parsed < 0:
            raise SettingsError(f"{source} is {excerpt(value)}, which is below 0")
        if self.is_share and isinstance(parsed, Decimal) and not is_share(parsed):
            _warn_of_share(source, parsed)
        return parsed


def is_size(value: object) -> bool:
    """Return True if *value* is a whole number, 0 or more."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: object) -> bool:
    """Return True if *value* is a finite number."""
    if isinstance(value, bool) or not isinstance(value, Real | Decimal):
        return False
    return math.isfinite(value)


def is_share(value: float | Decimal) -> bool:
    """Return True if *value* is between 0 and 1."""
    return 0 <= value <= 1


def share_advice(value: float | Decimal) -> str:
    """Return how to write *value*, which is no share, for the end of an error text."""
    if 1 < value <= 100:
        return f"a share is between 0 and 1; for {value} % write {value / 100}"
    return "a share is between 0 and 1, such as 0.2"


@cache
def _warn_of_share(source: str, value: Decimal) -> None:
    """Log, once for each setting and value, that *value* is no share."""
    logger.warning("%s is %s; %s", source, value, share_advice(value))


def excerpt(value: object) -> str:
    """Return *value* as error texts show it: short, on one line, and a class by its name."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return one_line(reprlib.repr(value), 100)


# Clients ------------------------------------------------------------------------------------------

_CLIENT = "give anthropic.AsyncAnthropic(), or its .beta for requests with betas="


def check_client(client: object) -> None:
    """Raise SettingsError unless *client* can be an async client of Anthropic."""
    name = type(client).__name__
    if isinstance(client, type):
        raise SettingsError(f"client is {excerpt(client)}; {_CLIENT}")
    create = getattr(getattr(client, "messages", None), "create", None)
    if callable(create):
        # For a function that is not of Anthropic's SDK it is unknown whether it blocks.
        is_of_sdk = str(getattr(create, "__module__", "")).startswith("anthropic.")
        if is_of_sdk and not is_async(create):
            raise SettingsError(f"client is {name}, which would block the event loop; {_CLIENT}")
        return
    if callable(getattr(client, "create", None)) and callable(getattr(client, "stream", None)):
        raise SettingsError(f"client is {name}, the messages of a client; give the client itself")
    raise SettingsError(f"client is {name}, which has no messages.create; {_CLIENT}")


# Functions in settings -------------------------------------------------------------------------


def is_async(function: object) -> bool:
    """Return True if *function* is an ``async def``, also inside `partial` or a decorator."""
    return inspect.iscoroutinefunction(_innermost(function))


def answers_at_once(candidate: object, *types: str) -> bool:
    """Return True if the function *candidate* certainly returns its answer instead of an awaitable.

    Only a call can show what a plain function returns. Two kinds are certain: a generator, and a
    function that creates an answer, an object of one of *types* (class names).
    """
    function = _innermost(candidate)
    if not isinstance(function, FunctionType) or inspect.iscoroutinefunction(function):
        return False
    code = function.__code__
    if code.co_flags & inspect.CO_ITERABLE_COROUTINE:  # types.coroutine
        return False
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return True
    return not set(types).isdisjoint(code.co_names)


def is_retried(function: object) -> bool:
    """Return True if tenacity calls *function* again when it fails."""
    while True:
        if hasattr(function, "retry_with"):
            return True
        if isinstance(function, partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return False


def takes_one(function: object) -> bool:
    """Return True if *function* accepts one argument, or its signature cannot be read."""
    try:
        inspect.signature(function).bind(None)  # type: ignore[arg-type]
    except TypeError as error:
        text = str(error)
        return "is not a callable object" in text or "unsupported callable" in text
    except ValueError:
        return True
    return True


def _innermost(function: object) -> object:
    """Return the function inside `partial`, decorators, bound methods and callable objects."""
    while True:
        call_method = inspect.getattr_static(type(function), "__call__", None)
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(call_method, FunctionType):
            function = call_method
        else:
            return function


# Checks -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Requirement:
    """A rule for a setting: *accepts* checks a value, *words* describe a valid one."""

    accepts: Callable[[Any], bool]
    words: str

    @property
    def optional(self) -> Requirement:
        """The same rule, which also accepts None."""
        return Requirement(
            lambda value: value is None or self.accepts(value), f"{self.words}, or None"
        )

    def check(self, name: str, value: object) -> None:
        """Raise SettingsError, which names the setting *name*, unless *value* is valid."""
        if self.accepts(value):
            return
        text = excerpt(value)
        if isinstance(value, type):
            text += f" (call it: {value.__name__}(…))"
        raise SettingsError(f"{name} is {text}; give {self.words}")


def instance_of(kinds: type | tuple[type, ...], words: str) -> Requirement:
    """Require an object of one of *kinds*, which may be protocols.

    A class itself is not accepted, although it has the methods of a protocol too.
    """
    return Requirement(
        lambda value: isinstance(value, kinds) and not isinstance(value, type), words
    )


def one_of(*names: str) -> Requirement:
    """Require one of *names*."""
    *others, last = [repr(name) for name in names]
    words = f"{', '.join(others)} or {last}"
    return Requirement(lambda value: isinstance(value, str) and value in names, words)


def check_settings(settings: object, **requirements: Requirement) -> None:
    """Raise SettingsError unless the attributes of *settings* meet the *requirements*, by name."""
    for name, requirement in requirements.items():
        requirement.check(name, getattr(settings, name))


def _is_function(value: object) -> bool:
    """Return True if *value* is a function that is not async, or a builtin type."""
    if isinstance(value, type):
        # Some builtin types are useful functions: float as a clock that always returns 0, str as a
        # redact function that changes nothing.
        return value.__module__ == "builtins"
    return callable(value) and not is_async(value)


def _is_names(value: object) -> bool:
    """Return True if *value* is a collection of texts, and no single text or mapping."""
    if not isinstance(value, Collection) or isinstance(value, str | bytes | Mapping):
        return False
    return all(isinstance(name, str) for name in value)


def _is_set_of_names(value: object) -> bool:
    return _is_names(value.keys() if isinstance(value, Mapping) else value)


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike) and bool(os.fspath(value))


def _is_tools(value: object) -> bool:
    """Return True if *value* maps names of tools to one input key or to several."""
    if not isinstance(value, Mapping) or not _is_names(value.keys()):
        return False
    return all(isinstance(keys, str) or _is_names(keys) for keys in value.values())


def _is_summarizer(value: object) -> bool:
    return CALLABLE.accepts(value) and not answers_at_once(value, "Summary")


SIZE = Requirement(is_size, "a whole number, 0 or more")
COUNT = Requirement(lambda value: is_size(value) and value > 0, "a whole number, 1 or more")
TURN = Requirement(
    lambda value: isinstance(value, int) and not isinstance(value, bool),
    "the number of a turn, or how many turns to go back as a negative number",
)
NUMBER = Requirement(lambda value: is_number(value) and value >= 0, "a number, 0 or more")
POSITIVE = Requirement(lambda value: is_number(value) and value > 0, "a number above 0")
FLAG = instance_of(bool, "True or False")
TEXT = instance_of(str, "a text")
PATH = Requirement(_is_path, "a path such as '.'")
NAMES = Requirement(
    lambda value: _is_names(value) and all(value), "a list of texts, none of them empty"
)
FUNCTION = Requirement(_is_function, "a function that is not async")
PIN = Requirement(
    lambda value: FUNCTION.accepts(value) or (bool(value) and _is_names(value) and all(value)),
    "a function of a message, Pins(tools=['Skill']), or a list of texts that the user says in it",
)
MAPPING = instance_of(Mapping, "a mapping such as {}")

TOOLS = Requirement(
    _is_tools, "a mapping from the name of a tool to its input, such as {'read_file': 'path'}"
)
TOOL_NAMES = Requirement(_is_set_of_names, "a set of names of tools")
CALLABLE = Requirement(
    lambda value: callable(value) and not isinstance(value, type),
    "a function, or an object that can be called like one",
)
SLEEP = Requirement(is_async, "an async function such as anyio.sleep")
SUMMARIZER = Requirement(
    _is_summarizer, "an async function, or an object that can be called like one"
)

MAX_SESSION_ID = 1_000
SESSION_ID = Requirement(
    lambda value: isinstance(value, str) and 0 < len(value) <= MAX_SESSION_ID,
    f"the conversation's name, a text of 1 to {MAX_SESSION_ID:,} characters",
)


def check_extra(what: str, module: str, extra: str) -> None:
    """Raise SettingsError unless the *module* of the *extra* that *what* needs can be imported."""
    try:
        import_module(module)
    except ImportError as error:
        raise SettingsError(f"{what} needs {module}: pip install 'ctxpipe[{extra}]'") from error


def setting(source: Setting[T]) -> Any:
    """Return a dataclass field whose default is read from *source* when the object is created."""
    return field(default_factory=source)


def optional_setting(source: Setting[T]) -> Any:
    """Return a dataclass field whose default is the environment's value of *source*, or None."""
    return field(default_factory=source.in_environment)


OFFLOAD_CHAR_THRESHOLD = Setting("OFFLOAD_CHAR_THRESHOLD", 100)
OFFLOAD_RATIO_THRESHOLD = Setting("OFFLOAD_RATIO_THRESHOLD", Decimal("0.2"), is_share=True)
DIRECT_OFFLOAD_CHAR_THRESHOLD = Setting("DIRECT_OFFLOAD_CHAR_THRESHOLD", 1000)
CONTEXT_TOKEN_LIMIT = Setting("CONTEXT_TOKEN_LIMIT", 200_000)
COMPACT_THRESHOLD_RATIO = Setting("COMPACT_THRESHOLD_RATIO", Decimal("0.92"))
COMPACT_MAX_RETRIES = Setting("COMPACT_MAX_RETRIES", 2)
COMPACT_OUTPUT_DIR = Setting("COMPACT_OUTPUT_DIR", ".compact")
EXAMPLE_MODEL = "claude-opus-5"
"""Model in error texts, help and tests: a current one with a listed price."""
SUMMARY_MODEL = Setting("SUMMARY_MODEL", "claude-haiku-4-5-20251001")
STORE_SECONDS = Setting("STORE_SECONDS", Decimal(2))
"""Seconds that a turn waits for all its stores together while no data arrive."""
SUMMARY_MAX_WORDS = Setting("SUMMARY_MAX_WORDS", 1200)
MAX_RESTORE_FILES = Setting("MAX_RESTORE_FILES", 5)
MAX_RESTORE_TOKENS_PER_FILE = Setting("MAX_RESTORE_TOKENS_PER_FILE", 5000)
MAX_RESTORE_TOKENS_TOTAL = Setting("MAX_RESTORE_TOKENS_TOTAL", 50_000)
