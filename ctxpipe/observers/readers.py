"""Whether the model can open what has left its context: a warning where it has no tool for it."""

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
from . import Observer, Shaped


class ReaderWatch(Observer):
    """Warns, once in a process, of texts that left the context of a model that cannot open them.

    Of a request whose tools are not known, as where `Session.run` is given none, it says nothing.
    """

    _is_answered = False

    async def shaped(self, context: Shaped) -> tuple[str, ...]:
        """Look at the tools once, when the first text has left."""
        tools = context.request.tools
        if self._is_answered or tools is None:
            return ()
        locations = [*context.timeline.placeholders.values()]
        for stored in context.step.stored:
            locations += stored.locations.values()
        if locations:
            self._is_answered = True
            is_url = SCHEME in locations[0]
            if not any(can_open(tool, is_url) for tool in tools):
                _warn()
        return ()


def can_open(tool: object, is_url: bool) -> bool:
    """Whether *tool* may read a file, or the text at a URL of ctxpipe's.

    By its name, or else by what its input is: too often rather than too seldom.
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
    return isinstance(keys, Mapping) and any(
        key in POSSIBLE_COMMAND_KEYS or PATH_KEY.search(key) for key in keys
    )


@cache
def _warn() -> None:
    logger.warning(
        "no tool of the request can open what has left its context: "
        "add offload_tools(session), or offload_tools(storage), to the tools of the model"
    )
