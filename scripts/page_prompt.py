"""Run the Python blocks of a page like the prompt of ``python -m asyncio``. `pages` starts it.

Reads one JSON object per line from standard input, ``{"code": …, "program": …}``, and answers each
with a line ``{"printed": …, "error": …}``. A program has its own names and no running event loop;
all other blocks share their names and one loop. After the last line the answer is
``{"uncalled": […]}``: the functions that the code defined but nothing called. Needs the standard
library only.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import gc
import io
import json
import sys
import threading
import traceback
import types
from collections.abc import Iterator
from typing import Any

FILE = "<page>"

defined: set[types.CodeType] = set()
called: set[types.CodeType] = set()


def note_call(frame: types.FrameType, event: str, _argument: object) -> None:
    """Record the functions of the page that are called. A profile function."""
    if event == "call" and frame.f_code.co_filename == FILE:
        called.add(frame.f_code)


def functions_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the functions that *code* defines, also those in classes and functions."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            is_function = constant.co_flags & 0x02  # CO_NEWLOCALS, which a class body does not have
            if is_function and not constant.co_name.endswith("comp>"):
                yield constant
            yield from functions_in(constant)


async def run_at_prompt(code: types.CodeType, names: dict[str, Any]) -> None:
    """Run *code*, and await it if it has an await at the top level."""
    coroutine = eval(code, names)  # noqa: S307  the code is our own documentation
    if coroutine is not None:
        await coroutine


def answer(request: dict[str, Any], names: dict[str, Any], runner: asyncio.Runner) -> Any:
    """Run one block. Returns what it printed, and its traceback or None."""
    output = io.StringIO()
    try:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(request["code"], FILE, "exec", flags=flags)
        defined.update(functions_in(code))
        with contextlib.redirect_stdout(output):
            if request["program"]:
                eval(code, {"__name__": "__main__"})  # noqa: S307
            else:
                runner.run(run_at_prompt(code, names))
    except BaseException:  # noqa: BLE001  any exception means that the page is wrong
        return {"printed": output.getvalue(), "error": traceback.format_exc()}
    return {"printed": output.getvalue(), "error": None}


def main() -> None:
    """Answer each line of standard input."""
    page = types.ModuleType("page")
    sys.modules["page"] = page  # dataclasses look up names in their module
    names = vars(page)
    threading.setprofile(note_call)
    sys.setprofile(note_call)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line), names, runner)), flush=True)
        names.clear()
        gc.collect()  # now Python warns of coroutines that were never awaited
    sys.setprofile(None)
    uncalled = sorted(code.co_qualname for code in defined - called)
    print(json.dumps({"uncalled": uncalled}), flush=True)


if __name__ == "__main__":
    main()
