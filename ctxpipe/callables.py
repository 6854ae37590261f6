"""What can be known about a function before it is called."""

from __future__ import annotations

import dis
import inspect
from functools import partial
from itertools import pairwise
from types import FunctionType

__all__ = ["answers_at_once", "is_async", "takes_one"]


def is_async(function: object) -> bool:
    """Whether *function* is an ``async def``: itself, behind `partial` and decorators, or called as
    an object.
    """
    return inspect.iscoroutinefunction(_innermost(function))


def answers_at_once(given: object, *types: str) -> bool:
    """Whether *given* is a function that certainly returns its answer itself, and nothing to await.

    That a plain function returns something to await can only be seen by calling it. So only this is
    certain: a generator, a function that returns nothing but constants, and one that builds an
    answer, an object of *types*.
    """
    function = _innermost(given)
    if not isinstance(function, FunctionType) or inspect.iscoroutinefunction(function):
        return False
    if function.__code__.co_flags & inspect.CO_ITERABLE_COROUTINE:  # types.coroutine
        return False
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return True
    return not set(types).isdisjoint(function.__code__.co_names) or _returns_constants(function)


def takes_one(function: object) -> bool:
    """Whether *function* can be called with one argument.

    True when its signature cannot be read.
    """
    try:
        inspect.signature(function).bind(None)  # type: ignore[arg-type]
    except TypeError as error:
        return "is not a callable object" in str(error) or "unsupported callable" in str(error)
    except ValueError:
        return True
    return True


def _innermost(function: object) -> object:
    """The function that *function* calls in the end, as `partial`, decorators and ``__call__``
    tell.
    """
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


def _returns_constants(function: FunctionType) -> bool:
    steps = [step.opname for step in dis.get_instructions(function)]
    return all(last == "LOAD_CONST" for last, step in pairwise(steps) if step == "RETURN_VALUE")
