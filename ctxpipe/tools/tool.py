"""Tools with their handlers, and functions that answer the model's tool calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from .._logs import logger
from .._values import JsonDict
from ..errors import CtxpipeError, SettingsError, StorageError
from ..messages import Block, field, kind, without_surrogates
from ..settings import excerpt

if TYPE_CHECKING:
    from anthropic.lib.tools import BetaAsyncBuiltinFunctionTool
    from anthropic.types import ToolParam, ToolResultBlockParam, ToolUseBlock, ToolUseBlockParam


ToolAnswer: TypeAlias = str | list[JsonDict]
"""Answer of a tool: a text, or blocks of a tool result, such as an image."""


class ToolInputError(CtxpipeError, ValueError):
    """Error for an invalid argument of a tool call; the model reads its text."""


@dataclass(frozen=True, slots=True)
class Tool:
    """Tool for the model: its definition for the Messages API, and the async function that runs it.

    *definition* is an item for ``tools=`` of a request. The *handler* takes the call's arguments
    and returns a text, or blocks of a tool result, such as an image. It raises `ToolInputError` for
    an invalid argument; the model reads its text.
    """

    definition: ToolParam
    handler: Callable[[Mapping[str, object]], Awaitable[ToolAnswer]]

    @property
    def name(self) -> str:
        """The name under which the model calls the tool."""
        return self.definition["name"]

    async def __call__(self, arguments: Mapping[str, object], /) -> ToolAnswer:
        """Return the tool's answer.

        In an agent's loop use `result`, in a framework `text`: these return errors as answers.

        Raises ToolInputError if an argument is invalid, with a text for the model, and every error
        of the handler.
        """
        return await self.handler(arguments)

    async def text(self, arguments: object, /) -> ToolAnswer:
        """Return the tool's answer; if the call fails, return an error text for the model.

        Use it in frameworks that take a tool as a function: many of them end the agent's run if a
        tool raises, for example because the model mistyped a path. An image or a document is
        returned as blocks.
        """
        content, _ = await self._attempt(arguments)
        return content

    async def result(self, block: Block, /) -> ToolResultBlockParam:
        """Return the tool_result block for the tool_use *block*, for the next user message.

        If the call fails, the result has ``is_error`` and a text for the model; no error is raised.
        Details of errors that the model did not cause are logged and not shown to the model.
        """
        content: Any
        content, is_error = await self._attempt(field(block, "input"))
        if is_error:
            return _error_result(block, content)
        return {"type": "tool_result", "tool_use_id": field(block, "id"), "content": content}

    async def _attempt(self, arguments: object) -> tuple[ToolAnswer, bool]:
        """Return what the model reads, and True if it is the text of an error."""
        if not isinstance(arguments, Mapping):
            arguments = {}
        try:
            return _sendable(await self(arguments)), False
        except Exception as error:  # noqa: BLE001  no error may end the agent's loop
            return without_surrogates(_error_text(self.name, error)), True


def _sendable(content: object) -> ToolAnswer:
    """Return *content* without lone surrogates, which cannot be sent; blocks as they are.

    Raises TypeError for anything but text and blocks, which the API would refuse.
    """
    if isinstance(content, list) and content and all(kind(block) for block in content):
        return content
    if not isinstance(content, str):
        raise TypeError(f"a tool's handler answers with a text, not with {type(content).__name__}")
    return without_surrogates(content)


def _error_result(block: Block, text: str) -> ToolResultBlockParam:
    """Return a tool_result block with an error *text* that answers *block*."""
    return {
        "type": "tool_result",
        "tool_use_id": field(block, "id"),
        "content": without_surrogates(text),
        "is_error": True,
    }


def _error_text(name: str, error: Exception) -> str:
    """Return the text for the model about *error*, without paths or texts of other sessions."""
    if isinstance(error, ToolInputError):
        # The API refuses an error without a text.
        return str(error).strip() or "an argument is invalid"
    logger.warning("the tool %s failed: %s", name, type(error).__name__)
    logger.debug("the tool %s failed", name, exc_info=error)
    if isinstance(error, StorageError):
        return "the text cannot be read"
    return f"the tool failed ({type(error).__name__}); try something else"


@overload
async def answer(
    block: ToolUseBlock | ToolUseBlockParam, tools: Iterable[Tool]
) -> ToolResultBlockParam: ...


@overload
async def answer(
    block: Block, tools: Iterable[Tool], *, others: Iterable[str] = ()
) -> ToolResultBlockParam | None: ...


async def answer(
    block: Block, tools: Iterable[Tool], *, others: Iterable[str] = ()
) -> ToolResultBlockParam | None:
    """Run the tool that the tool_use *block* calls, and return its tool_result block.

    Returns None if *block* is no ``tool_use``, or names one of the *others*: names of tools that
    the caller runs itself. A tool that fails raises nothing: the result has ``is_error`` and a text
    for the model. So does the result for an unknown tool; its text lists *tools* and *others*.

    Raises SettingsError if *others* is a single text.
    """
    if isinstance(others, str):
        raise SettingsError(f"others is {excerpt(others)}; give a list of names")
    name = field(block, "name")
    names = list(others)
    if kind(block) != "tool_use" or name in names:
        return None
    by_name = {tool.name: tool for tool in tools}
    if isinstance(name, str) and name in by_name:
        return await by_name[name].result(block)
    return _error_result(block, unknown_tool(name, [*by_name, *names]))


def unknown_tool(name: object, names: Iterable[str]) -> str:
    """Return the error text for a call of the unknown tool *name*, with the available *names*."""
    available = ", ".join(names) or "none"
    return f"there is no tool {excerpt(name)}; there are: {available}"


def as_beta_tools(tools: Iterable[Tool]) -> list[BetaAsyncBuiltinFunctionTool]:
    """Return *tools* in the form that the tool runner of Anthropic's SDK takes.

    Give the list to ``client.beta.messages.tool_runner`` as *tools*. The client must be
    asynchronous.
    """
    from anthropic.lib.tools import BetaAsyncBuiltinFunctionTool, ToolError

    class BetaTool(BetaAsyncBuiltinFunctionTool):
        def __init__(self, tool: Tool) -> None:
            self.tool = tool

        def to_dict(self) -> Any:
            return dict(self.tool.definition)

        async def call(self, input: object) -> Any:  # noqa: A002  the SDK's own name
            """Run the tool, and return its content. Raises the SDK's ToolError if it fails."""
            result: Mapping[str, Any] = await self.tool.result({"input": input})
            if result.get("is_error"):
                raise ToolError(result["content"])
            return result["content"]

    return [BetaTool(tool) for tool in tools]
