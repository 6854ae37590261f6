"""What one message is, read once: facts that depend on nothing but the message itself.

Among them are the rules of the Messages API that it breaks whatever is around it. Each rule rests
on the API's reference, on its guides, or on the words of its refusals. Where these are silent,
nothing is refused: a block of an unknown kind passes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from .._threads.bulk import MAPPINGS
from .._values import SURROGATE, encoding_fault
from .vocabulary import (
    CALLS,
    MEDIA,
    MESSAGE_KEYS,
    ROLES,
    SERVER_CALLS,
    SERVER_RESULTS,
    THINKING,
    Block,
    Message,
    field,
    kind,
)

_SYSTEM_KEYS = MESSAGE_KEYS | {"clear_at", "output_config"}
_NOT_IN_SYSTEM = frozenset({"image", "document", "search_result", "container_upload", "compaction"})
_SPEAKERS = {
    "tool_result": frozenset({"user"}),
    **dict.fromkeys(CALLS | THINKING | SERVER_RESULTS, frozenset({"assistant"})),
    **dict.fromkeys(_NOT_IN_SYSTEM, ROLES - {"system"}),
}
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_SERVER_ID = re.compile(r"srvtoolu_[a-zA-Z0-9_]+")
_SERVER_ID_KINDS = (SERVER_RESULTS - {"mcp_tool_result"}) | {"server_tool_use"}
_DUMPED_KEYS = frozenset({"citations", "text"})  # a dump of a compaction block adds them
MAX_TOOL_NAME = 200
_SHOWN = 60  # characters of an id in a sentence


class Fault(NamedTuple):
    """A *rule* of the Messages API that a message breaks, by itself.

    *block* is the index of the block at fault, None where the message as a whole is at fault.
    """

    rule: str
    text: str
    block: int | None = None

    @property
    def is_value(self) -> bool:
        """Whether a value cannot be encoded, as opposed to something that the API refuses."""
        return self.rule in ("value", "surrogate")


class Facts(NamedTuple):
    """What one message is.

    *kinds* are those of its blocks; bare text counts as a text block. *calls* are the ids of its
    tool_use blocks, *results* the ids that its tool_result blocks answer, both in order. *marks* is
    its number of cache marks, *result_chars* are the characters of its tool results, one of blocks
    counted as `UNMEASURED`. *media* counts its images and documents, those in results included.
    With *has_server_tools* a block is about a tool that the server runs.
    *faults* are the rules that it breaks by itself, values that cannot be encoded included.
    """

    role: str
    kinds: Sequence[str] = ()
    calls: Sequence[str] = ()
    results: Sequence[str] = ()
    marks: int = 0
    result_chars: int = 0
    media: int = 0
    has_server_tools: bool = False
    faults: Sequence[Fault] = ()


NO_FACTS = Facts("")
UNMEASURED = 10**12
"""More characters than any text has: those of blocks depend on how they are written down."""


def read_facts(message: Message) -> Facts:
    """The facts of *message*, which must have passed `ensure_messages`."""
    role = message["role"]
    content = message["content"]
    faults: list[Fault] = []
    if len(message) != len(MESSAGE_KEYS):
        faults += _key_faults(message)
    if not content or isinstance(content, str):
        faults += _text_faults(message)
        return Facts(role, ("text",) if content else (), faults=tuple(faults))
    kinds = list(map(kind, content))
    calls: list[str] = []
    results: list[str] = []
    marks = 0
    result_chars = 0
    media = 0
    has_server_tools = False
    number_of_results = kinds.count("tool_result")
    for place, block in enumerate(content):
        name = kinds[place]
        # A dict's own method: `field` for each key would take most of the time.
        read = block.get if isinstance(block, dict) else partial(field, block)
        inner = read("content")
        for rule, text in _block_faults(role, name, block, read):
            faults.append(Fault(rule, text, place))
        if name == "tool_use":
            calls.append(str(read("id", "")))
            has_server_tools = has_server_tools or read("caller") is not None
        elif name == "tool_result":
            results.append(str(read("tool_use_id", "")))
            result_chars += len(inner) if isinstance(inner, str) else UNMEASURED
            if place >= number_of_results:
                faults.append(Fault("results-first", "a tool_result after another block", place))
        elif name in SERVER_CALLS or is_server_result(name):
            has_server_tools = True
        if name not in THINKING and (fault := encoding_fault(block)):
            faults.append(_value_fault(fault, place))
        marks += bool(read("cache_control"))
        if isinstance(inner, list | tuple):
            marks += sum(bool(field(part, "cache_control")) for part in inner)
            media += sum(kind(part) in MEDIA for part in inner)
        media += name in MEDIA
    if role == "assistant" and kinds[-1] in THINKING:
        faults.append(Fault("thinking", "it ends in a thinking block", len(kinds) - 1))
    return Facts(
        role, kinds, calls, results, marks, result_chars, media, has_server_tools, tuple(faults)
    )


# Faults -------------------------------------------------------------------------------------------


def _key_faults(message: Message) -> list[Fault]:
    role = message["role"]
    unknown = [repr(key) for key in message if not is_message_key(role, key)]
    if not unknown:
        return []
    return [Fault("message-key", f"a message has no key {', '.join(unknown)}")]


def _text_faults(message: Message) -> list[Fault]:
    """What is wrong with the text of *message*, which has no blocks."""
    text = message["content"]
    if is_blank(text):
        return [] if is_directive(message) else [Fault("empty", "it is empty")]
    fault = encoding_fault(text)
    return [_value_fault(fault)] if fault else []


def _value_fault(fault: str, place: int | None = None) -> Fault:
    if fault == SURROGATE:
        return Fault("surrogate", fault, place)
    return Fault("value", f"it holds {fault}", place)


def _block_faults(
    role: str, name: str, block: Block, read: Callable[..., Any]
) -> Iterator[tuple[str, str]]:
    """What is wrong with one *block* of the kind *name*, whose keys *read* returns."""
    if role not in _SPEAKERS.get(name, ROLES):
        article = "an" if role == "assistant" else "a"
        what = "thinking block" if name in THINKING else name
        yield "speaker", f"a {what} in {article} {role} message"
    if name == "text":
        if is_blank(read("text")):
            yield "empty", "an empty text block"
    elif name in CALLS:
        yield from _call_faults(name, block, read)
    elif name == "tool_result" or name in SERVER_RESULTS:
        yield from _result_faults(name, read)
    elif name in THINKING:
        if not is_signed(block):
            yield "thinking", "a thinking block without its signature"
        if read("cache_control"):
            yield "thinking", "a thinking block with a cache mark"
    elif name == "compaction":
        yield from _compaction_faults(block)
    elif not name:
        yield "block-type", "a block without a type"


def is_message_key(role: str, key: object) -> bool:
    """Whether a message of *role* may have *key*."""
    return key in (_SYSTEM_KEYS if role == "system" else MESSAGE_KEYS)


def is_directive(message: Message) -> bool:
    """Whether *message* is a system message that only sets options.

    Such a message may be empty, and be anywhere in the conversation.
    """
    is_empty = message["role"] == "system" and not message["content"]
    return is_empty and bool(field(message, "output_config"))


def is_blank(text: object) -> bool:
    """Whether a text block with *text* would be refused as empty."""
    return not text or (isinstance(text, str) and text.isspace())


def _compaction_faults(block: Block) -> Iterator[tuple[str, str]]:
    if field(block, "content") == "":
        yield "compaction", "an empty compaction block"
    if surplus_keys(block, "compaction"):
        yield "block-key", "a compaction block with a key that is not its own"


def _result_faults(name: str, read: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    call_id = read("tool_use_id")
    if not is_id(call_id, name):
        yield "tool-id", f"the tool_use_id {quote(call_id)} is none that the API takes"
    if name != "tool_result":
        return
    content = read("content")
    if isinstance(content, list | tuple) and not all(map(kind, content)):
        yield "block-type", "a tool_result that holds a block without a type"
    if not read("is_error"):
        return
    if not content:
        yield "error-result", "an error that says nothing"
    elif not isinstance(content, str) and any(kind(inner) != "text" for inner in content):
        yield "error-result", "an error that is not text alone"


def _call_faults(name: str, block: Block, read: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    call_id = read("id")
    if not is_id(call_id, name):
        yield "tool-id", f"the id {quote(call_id)} is none that the API takes"
    if not is_tool_name(read("name")):
        yield "tool-name", f"a {name} that names no tool"
    arguments = read("input")
    if not is_object(arguments):
        yield "tool-input", f"a {name} whose input is {type(arguments).__name__}, not an object"
    if surplus_keys(block, name):
        caller = type(read("caller")).__name__
        yield "block-key", f"a {name} whose caller is {caller}, not an object"


def is_said_by(role: str, name: str) -> bool:
    """Whether a block of the kind *name* may be in a message of *role*; unknown kinds may."""
    return role in _SPEAKERS.get(name, ROLES)


def is_server_result(name: str) -> bool:
    """Whether blocks of the kind *name* are results of tools that the server runs."""
    return name.endswith("_tool_result")


def surplus_keys(block: Block, name: str) -> list[str]:
    """The keys of a call or a compaction block, of the kind *name*, that the API refuses there."""
    if isinstance(block, MAPPINGS):
        keys: Iterable[str] = block
    else:
        keys = getattr(block, "model_fields_set", ())
    if name == "compaction":
        extra = getattr(block, "model_extra", None) or {}
        return [key for key in (*keys, *extra) if key in _DUMPED_KEYS]
    if "caller" in keys and not is_object(field(block, "caller")):
        return ["caller"]
    return []


def has_server_id(name: str) -> bool:
    """Whether blocks of the kind *name* carry the id of a tool that the API runs itself."""
    return name in _SERVER_ID_KINDS


def is_id(value: object, name: str) -> bool:
    """Whether the API takes *value* as the id of a call in a block of the kind *name*."""
    pattern = _SERVER_ID if name in _SERVER_ID_KINDS else _ID
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def is_tool_name(value: object) -> bool:
    """Whether the API takes *value* as the name of the tool that is called."""
    return isinstance(value, str) and 0 < len(value) <= MAX_TOOL_NAME


def is_object(value: object) -> bool:
    """Whether the API takes *value* as the input of a call."""
    return isinstance(value, MAPPINGS) or hasattr(value, "model_dump")


def is_signed(block: Block) -> bool:
    """Whether a thinking *block* carries what proves it to be the model's own."""
    key = "signature" if kind(block) == "thinking" else "data"
    proof = field(block, key)
    return isinstance(proof, str) and bool(proof)


def quote(value: object) -> str:
    """*value*, an id, as an error shows it."""
    if not isinstance(value, str):
        return type(value).__name__
    if len(value) > _SHOWN:
        value = f"{value[:_SHOWN]}…"
    return repr(value)
