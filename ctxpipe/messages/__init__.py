"""Messages of Anthropic's API: types, reading, identity, and the rules of the API.

- `vocabulary`: the types, and functions to read and rewrite a message.
- `contents`: the text of a block.
- `shape`: the check that a value is a list of messages at all.
- `identity`: the plain form of a message, its digest, and the comparison of messages.
- `facts`: counts and faults of one message, read once.
- `fact_sums`: sums over the facts of a context.
- `rules`: the table of the rules of the API, and the check of a conversation.
"""

from .._threads.bulk import is_bulky
from .._values import (
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
    without_surrogates,
)
from .contents import block_text, is_text_part, result_text, source_of
from .fact_sums import FactSums
from .facts import is_blank
from .rules import MAX_CACHE_MARKS, RULES, Problem, Rule, cache_marks, check, ensure_sendable_values
from .shape import ensure_messages
from .vocabulary import (
    CALLS,
    MEDIA,
    OPAQUE,
    SERVER_CALLS,
    THINKING,
    Block,
    Message,
    MessageLike,
    ToolCall,
    ToolResult,
    as_blocks,
    blocks,
    common_prefix,
    field,
    has_calls,
    has_results,
    has_thinking,
    inner_blocks,
    is_bound,
    is_opaque,
    kind,
    pending_calls,
    program,
    results_by_id,
    rewrite,
    split_system,
    texts,
    tool_calls,
    tool_results,
    with_content,
)

__all__ = [
    "CALLS",
    "MAX_CACHE_MARKS",
    "MAX_DEPTH",
    "MEDIA",
    "OPAQUE",
    "RULES",
    "SERVER_CALLS",
    "SURROGATE",
    "THINKING",
    "Block",
    "FactSums",
    "Message",
    "MessageLike",
    "Problem",
    "Rule",
    "ToolCall",
    "ToolResult",
    "as_blocks",
    "as_dict",
    "as_json",
    "block_text",
    "blocks",
    "cache_marks",
    "check",
    "common_prefix",
    "compact_json",
    "deep_copy",
    "ensure_messages",
    "ensure_sendable_values",
    "field",
    "has_calls",
    "has_results",
    "has_thinking",
    "inner_blocks",
    "is_blank",
    "is_bound",
    "is_bulky",
    "is_encodable",
    "is_equal",
    "is_opaque",
    "is_text_part",
    "json_pieces",
    "kind",
    "pending_calls",
    "program",
    "rebuilt",
    "result_text",
    "results_by_id",
    "rewrite",
    "source_of",
    "split_system",
    "strings",
    "texts",
    "tool_calls",
    "tool_results",
    "with_content",
    "without_surrogates",
]
