"""The prompt of a reader who types in a page's Python blocks: what ``python -m asyncio`` would do.

Reads one JSON object a line from standard input, ``{"code": …, "program": …}``, and answers each
with ``{"printed": …, "error": …}``. A program gets names of its own and no running event loop; all
other blocks share theirs. After the last line it answers ``{"uncalled": […]}``: the functions that
the code defines and nothing has called. Needs the standard library only.
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
    """Remember the page's functions that run."""
    if event == "call" and frame.f_code.co_filename == FILE:
        called.add(frame.f_code)


def functions_in(code: types.CodeType) -> Iterator[types.CodeType]:
    """The functions that *code* defines, those in classes and functions too."""
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            is_function = constant.co_flags & 0x02  # CO_NEWLOCALS: a class body has it not
            if is_function and not constant.co_name.endswith("comp>"):
                yield constant
            yield from functions_in(constant)


async def run_at_prompt(code: types.CodeType, names: dict[str, Any]) -> None:
    waiting = eval(code, names)  # noqa: S307  what the page says
    if waiting is not None:
        await waiting


def answer(request: dict[str, Any], names: dict[str, Any], runner: asyncio.Runner) -> Any:
    """What one block prints, and its error."""
    said = io.StringIO()
    try:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(request["code"], FILE, "exec", flags=flags)
        defined.update(functions_in(code))
        with contextlib.redirect_stdout(said):
            if request["program"]:
                eval(code, {"__name__": "__main__"})  # noqa: S307
            else:
                runner.run(run_at_prompt(code, names))
    except BaseException:  # noqa: BLE001  whatever it is, the page is wrong
        return {"printed": said.getvalue(), "error": traceback.format_exc()}
    return {"printed": said.getvalue(), "error": None}


def main() -> None:
    page = types.ModuleType("page")
    sys.modules["page"] = page  # where dataclasses look for their names
    names = vars(page)
    threading.setprofile(note_call)
    sys.setprofile(note_call)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            print(json.dumps(answer(json.loads(line), names, runner)), flush=True)
        names.clear()
        gc.collect()  # a coroutine that nobody has awaited says so now
    sys.setprofile(None)
    uncalled = sorted(code.co_qualname for code in defined - called)
    print(json.dumps({"uncalled": uncalled}), flush=True)


if __name__ == "__main__":
    main()
