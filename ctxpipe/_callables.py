"""What can be known about a function before it is called."""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType


def is_async(function: object) -> bool:
    """Whether *function* is an ``async def``, also inside `partial`, decorators or an object."""
    return inspect.iscoroutinefunction(_innermost(function))


def answers_at_once(given: object, *types: str) -> bool:
    """Whether *given* is a function that certainly returns its answer, not something to await.

    Only a call can show what a plain function returns. So two kinds are certain: a generator, and a
    function that builds an answer, an object of *types*.
    """
    function = _innermost(given)
    if not isinstance(function, FunctionType) or inspect.iscoroutinefunction(function):
        return False
    code = function.__code__
    if code.co_flags & inspect.CO_ITERABLE_COROUTINE:  # types.coroutine
        return False
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return True
    return not set(types).isdisjoint(code.co_names)


def takes_one(function: object) -> bool:
    """Whether *function* can be called with one argument; True if its signature cannot be read."""
    try:
        inspect.signature(function).bind(None)  # type: ignore[arg-type]
    except TypeError as error:
        text = str(error)
        return "is not a callable object" in text or "unsupported callable" in text
    except ValueError:
        return True
    return True


def _innermost(function: object) -> object:
    """The function inside `partial`, decorators, bound methods and objects with ``__call__``."""
    while True:
        called = inspect.getattr_static(type(function), "__call__", None)
        if isinstance(function, partial):
            function = function.func
        elif inspect.ismethod(function):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(called, FunctionType):
            function = called
        else:
            return function
