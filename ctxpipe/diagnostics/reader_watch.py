"""Warn if the model has no tool to open the texts that were moved out of its context."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from .._logs import logger
from ..messages import field, kind
from ..messages.vocabulary import tool_name
from ..placeholders.locations import SCHEME
from ..providers.agent_tools import (
    COMMON_READING_TOOLS,
    PATH_KEY,
    POSSIBLE_COMMAND_KEYS,
    READ_BACK_TOOLS,
    SHELL_TOOLS,
)
from .observers import Observer, ShapedContext


class ReaderWatch(Observer):
    """Warns, once per process, if texts were moved to files that the model cannot open.

    Requests whose tools are unknown are ignored, such as those of `Session.run` without ``tools``.
    """

    _is_checked = False

    async def shaped(self, context: ShapedContext) -> tuple[str, ...]:
        """Log a warning if no tool of the request can open the files behind placeholders.

        It checks only once, in the first turn that has a placeholder and a list of tools. Returns
        no warnings for the result.
        """
        tools = context.tools
        if self._is_checked or tools is None:
            return ()
        locations = [*context.earlier.placeholders.values()]
        for stored in context.stored:
            locations += stored.locations.values()
        if locations:
            self._is_checked = True
            is_url = SCHEME in locations[0]
            if not any(can_open(tool, is_url=is_url) for tool in tools):
                _warn()
        return ()


def can_open(tool: object, *, is_url: bool) -> bool:
    """Return True if *tool* may read a file or, with *is_url*, the text at a URL of ctxpipe.

    The tool's name decides, then the properties of its input. In doubt the answer is True.
    """
    function = field(tool, "function") or tool
    name = tool_name(tool)
    if name.endswith(tuple(READ_BACK_TOOLS)) or kind(tool).startswith("mcp"):
        return True
    if is_url:
        return False
    if name in COMMON_READING_TOOLS or name.lower() in SHELL_TOOLS:
        return True
    schema = field(function, "input_schema") or field(function, "parameters")
    keys = field(schema, "properties")
    if not isinstance(keys, Mapping):
        return False
    return any(key in POSSIBLE_COMMAND_KEYS or PATH_KEY.search(key) for key in keys)


@cache
def _warn() -> None:
    """Log a warning that the model has no tool to open the files behind placeholders."""
    logger.warning(
        "no tool of the request can open the files behind placeholders: "
        "add offload_tools(session), or offload_tools(storage), to the tools of the model"
    )
