"""A server of the Model Context Protocol with tools that read offloaded content.

``ctxpipe mcp .ctxpipe`` serves the tools over standard input and output, for any client:
``claude mcp add ctxpipe -- ctxpipe mcp .ctxpipe``. `offload_app` serves them over HTTP and is part
of ``ctxpipe gateway``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from .._values import JsonDict
from ..messages import without_surrogates
from ..tools import Tool, offload_tools
from ..tools.tool import unknown_tool
from ..wire.versions import Versions, load

VERSIONS = Versions("mcp", "mcp", "2.0.0", "2.3.0")
load("mcp.server.lowlevel", VERSIONS, {"Server": ["on_list_tools", "on_call_tool"]})

from mcp import types  # noqa: E402
from mcp.server.lowlevel import Server  # noqa: E402
from mcp.server.stdio import stdio_server  # noqa: E402
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager  # noqa: E402

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from ..storage import TextReader

__all__ = ["offload_app", "offload_server", "serve"]

READS = types.ToolAnnotations(
    read_only_hint=True, idempotent_hint=True, destructive_hint=False, open_world_hint=False
)


def offload_server(storage: TextReader, *, session_id: str | None = None) -> Server[Any]:
    """Return a server of the official ``mcp`` package with the tools of `offload_tools`.

    The tools read only texts of *storage*. With *session_id* they read only those of this session,
    and of conversations that an adapter found under the same name, such as sub-agents. A call that
    names any other text gets an error as its result.

    Raises SettingsError if a setting is invalid, see `offload_tools`.
    """
    tools = {tool.name: tool for tool in offload_tools(storage, session_id=session_id)}

    async def list_tools(context: object, params: object) -> types.ListToolsResult:  # noqa: ARG001
        return types.ListToolsResult(tools=[_description(tool) for tool in tools.values()])

    async def call_tool(
        context: object,  # noqa: ARG001
        params: types.CallToolRequestParams,
    ) -> types.CallToolResult:
        """Run the tool that the request names; return its result.

        An unknown or failed tool raises nothing: the result has ``is_error`` and a text for the
        model.
        """
        tool = tools.get(params.name)
        if tool is None:
            return _result(unknown_tool(params.name, tools), is_error=True)
        block = {"type": "tool_use", "id": params.name, "input": params.arguments or {}}
        answer = await tool.result(block)
        return _result(answer["content"], is_error=bool(answer.get("is_error")))

    return Server("ctxpipe", on_list_tools=list_tools, on_call_tool=call_tool)


def offload_app(storage: TextReader) -> ASGIApp:
    """Return an ASGI application that serves `offload_server` over streamable HTTP.

    Requests are independent of each other. The application does not authenticate clients: place it
    behind a server that does.

    Raises SettingsError if a setting is invalid, see `offload_tools`.
    """
    server = offload_server(storage)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request with a session manager of its own."""
        # A manager can run only once. Without sessions it keeps no state between two requests.
        manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
        async with manager.run():
            await manager.handle_request(scope, receive, send)

    return app


def _description(tool: Tool) -> types.Tool:
    """Return the description of *tool* for MCP: name, text and input schema; it only reads."""
    definition = tool.definition
    return types.Tool(
        name=tool.name,
        description=definition.get("description"),
        input_schema=cast("JsonDict", definition["input_schema"]),
        annotations=READS,
    )


def _result(content: Any, *, is_error: bool) -> types.CallToolResult:
    """Return *content*, a text or blocks, as the result of a call for MCP."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return types.CallToolResult(content=[_part(part) for part in parts], is_error=is_error)


def _part(block: JsonDict) -> types.ContentBlock:
    """Return *block*, a text, image or document, as content for MCP."""
    if block["type"] == "text":
        return types.TextContent(type="text", text=without_surrogates(block["text"]))
    data = block["source"]["data"]
    media_type = block["source"]["media_type"]
    if block["type"] == "image":
        return types.ImageContent(type="image", data=data, mime_type=media_type)
    blob = types.BlobResourceContents(uri="ctxpipe://document", blob=data, mime_type=media_type)
    return types.EmbeddedResource(type="resource", resource=blob)


async def serve(server: Server[Any]) -> None:
    """Serve over standard input and output until the client closes them."""
    async with stdio_server() as (read_stream, write_stream):
        await server.run(read_stream, write_stream, server.create_initialization_options())
