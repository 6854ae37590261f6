"""Anthropic's messages: their vocabulary, what is done at the door, and the API's rules.

What the words mean: `vocabulary` has the types and the questions that anybody may ask of a message,
`values` what can be inside one and how it is encoded.

At the door: `shape` refuses what is no history, `identity` makes plain dicts of the SDK's objects
and says which messages are the same, `bulk` which are too many to be read on an event loop.

`facts` says what one message is, read once; `columns` holds the facts of a context, with prefix
sums. `rules` is the one table of what the API refuses, and the check of it.
"""

from .bulk import is_bulky
from .columns import Columns
from .facts import is_blank
from .rules import MAX_CACHE_MARKS, RULES, Problem, Rule, cache_marks, check
from .shape import ensure_messages
from .values import (
    MAX_DEPTH,
    SURROGATE,
    as_dict,
    as_json,
    compact_json,
    deep_copy,
    is_encodable,
    is_equal,
    json_pieces,
    rebuilt,
    strings,
    wire_value,
    without_surrogates,
)
from .vocabulary import (
    CALLS,
    MEDIA,
    ROLES,
    SERVER_CALLS,
    THINKING,
    Block,
    Message,
    ToolCall,
    ToolResult,
    as_blocks,
    blocks,
    common_prefix,
    field,
    has_calls,
    has_results,
    has_thinking,
    kind,
    pending_calls,
    program,
    result_text,
    results_by_id,
    rewrite,
    same_at_end,
    split_system,
    texts,
    tool_calls,
    tool_results,
)

__all__ = [
    "CALLS",
    "MAX_CACHE_MARKS",
    "MAX_DEPTH",
    "MEDIA",
    "ROLES",
    "RULES",
    "SERVER_CALLS",
    "SURROGATE",
    "THINKING",
    "Block",
    "Columns",
    "Message",
    "Problem",
    "Rule",
    "ToolCall",
    "ToolResult",
    "as_blocks",
    "as_dict",
    "as_json",
    "blocks",
    "cache_marks",
    "check",
    "common_prefix",
    "compact_json",
    "deep_copy",
    "ensure_messages",
    "field",
    "has_calls",
    "has_results",
    "has_thinking",
    "is_blank",
    "is_bulky",
    "is_encodable",
    "is_equal",
    "json_pieces",
    "kind",
    "pending_calls",
    "program",
    "rebuilt",
    "result_text",
    "results_by_id",
    "rewrite",
    "same_at_end",
    "split_system",
    "strings",
    "texts",
    "tool_calls",
    "tool_results",
    "wire_value",
    "without_surrogates",
]
