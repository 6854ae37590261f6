"""Table of the item types that OpenAI's responses API, or its model, writes.

It is needed for histories with replies that ctxpipe has not received: items of these types are part
of a reply, items of any other type were written by the client. Source: the unions
``ResponseOutputItem`` and ``BetaResponseOutputItem`` of the openai package 3.57.0, which are
generated from OpenAI's specification. Both unions also list types that only clients write, such as
``additional_tools``, since the same union describes stored conversations; those types are left out
here.
"""

from __future__ import annotations

ANSWERED_ITEMS = frozenset(
    {
        "apply_patch_call",
        "computer_call",
        "custom_tool_call",
        "function_call",
        "local_shell_call",
        "shell_call",
    }
)
"""Types of calls that the client answers, with an item of the type plus ``_output``."""

SERVER_ITEMS = frozenset(
    {
        "code_interpreter_call",
        "compaction",
        "context_compaction",
        "file_search_call",
        "image_generation_call",
        "item_reference",
        "mcp_approval_request",
        "mcp_call",
        "mcp_list_tools",
        "multi_agent_call",
        "multi_agent_call_output",
        "program",
        "program_output",
        "reasoning",
        "tool_search_call",
        "web_search_call",
    }
)
"""Types of items that the server writes, except messages and the calls that clients answer.

An ``item_reference`` names an item that the server has stored, in most cases part of a reply.
"""

CLIENT_SEARCH = "client"
"""The ``execution`` of a tool search that the client runs; one by the server is ``"server"``."""

COMPACTION_TRIGGER = "compaction_trigger"
"""Type of the last item of a request that asks the server to compact the conversation."""

VOLATILE_FIELDS = frozenset({"created_by", "id", "status"})
"""Fields in which an item that a client sends back may differ from the one in the reply."""
