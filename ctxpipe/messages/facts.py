"""Facts about one message that do not depend on the messages around it. Each message is read once.

Among the facts are the faults of a message: the rules of the Messages API that it breaks by itself.
`rules` has the table of all rules, and checks those that need several messages. Each rule is based
on the API's reference, its guides, or the texts of its refusals. Anything that these do not mention
is accepted, such as a block of an unknown kind.
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
# By kind of block: the roles of the messages that may contain it. Others may be in any message.
_ROLES_BY_KIND = {
    "tool_result": frozenset({"user"}),
    **dict.fromkeys(CALLS | THINKING | SERVER_RESULTS, frozenset({"assistant"})),
    **dict.fromkeys(_NOT_IN_SYSTEM, ROLES - {"system"}),
}
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_SERVER_ID = re.compile(r"srvtoolu_[a-zA-Z0-9_]+")
_SERVER_ID_KINDS = (SERVER_RESULTS - {"mcp_tool_result"}) | {"server_tool_use"}
_DUMPED_KEYS = frozenset({"citations", "text"})  # the SDK adds them to a compaction block
MAX_TOOL_NAME = 200
_MAX_QUOTED_ID = 60  # characters of an id in an error


class Fault(NamedTuple):
    """A *rule* of the Messages API that a message breaks by itself.

    *text* describes the fault. *block* is the index of the block at fault; None if the message as a
    whole is at fault.
    """

    rule: str
    text: str
    block: int | None = None

    @property
    def is_value(self) -> bool:
        """True if a value cannot be encoded; False if the API would refuse the message."""
        return self.rule in ("value", "surrogate")


class MessageFacts(NamedTuple):
    """Facts about one message.

    *kinds* has the kinds of its blocks; text as content counts as a text block. *calls* has the ids
    of its tool_use blocks, *results* the ids of the calls that its tool_result blocks answer, both
    in order. *marks* is the number of its cache marks. *result_chars* is the number of characters
    of its tool results; a result of blocks counts as `UNMEASURED`. *media* is the number of its
    images and documents, those in results included. *has_server_tools* is True if it has a call or
    a result of a tool that the server runs, or a call made by code of such a tool. *faults* has the
    rules that it breaks by itself, and the values that cannot be encoded.
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


NO_FACTS = MessageFacts("")
UNMEASURED = 10**12
"""Characters that a tool result of blocks counts as: more than any text has.

The real number depends on the form in which the blocks are written to a file.
"""


def read_facts(message: Message) -> MessageFacts:
    """Return the facts of *message*, which must have passed `ensure_messages`."""
    role = message["role"]
    content = message["content"]
    faults: list[Fault] = []
    if len(message) != len(MESSAGE_KEYS):
        faults += _key_faults(message)
    if not content or isinstance(content, str):
        faults += _text_faults(message)
        return MessageFacts(role, ("text",) if content else (), faults=tuple(faults))
    kinds = [kind(block) for block in content]
    calls: list[str] = []
    results: list[str] = []
    marks = 0
    result_chars = 0
    media = 0
    has_server_tools = False
    result_count = kinds.count("tool_result")
    for place, block in enumerate(content):
        name = kinds[place]
        # A dict's own method: `field` for each key would take most of the time.
        get = block.get if isinstance(block, dict) else partial(field, block)
        inner = get("content")
        for rule, text in _block_faults(role, name, block, get):
            faults.append(Fault(rule, text, place))
        if name == "tool_use":
            calls.append(str(get("id", "")))
            has_server_tools = has_server_tools or get("caller") is not None
        elif name == "tool_result":
            results.append(str(get("tool_use_id", "")))
            result_chars += len(inner) if isinstance(inner, str) else UNMEASURED
            if place >= result_count:
                faults.append(Fault("results-first", "a tool_result after another block", place))
        elif name in SERVER_CALLS or is_server_result(name):
            has_server_tools = True
        if name not in THINKING and (fault := encoding_fault(block)):
            faults.append(_value_fault(fault, place))
        marks += bool(get("cache_control"))
        if isinstance(inner, list | tuple):
            marks += sum(bool(field(part, "cache_control")) for part in inner)
            media += sum(kind(part) in MEDIA for part in inner)
        media += name in MEDIA
    if role == "assistant" and kinds[-1] in THINKING:
        faults.append(Fault("thinking", "it ends in a thinking block", len(kinds) - 1))
    return MessageFacts(
        role, kinds, calls, results, marks, result_chars, media, has_server_tools, tuple(faults)
    )


# Faults -------------------------------------------------------------------------------------------


def _key_faults(message: Message) -> list[Fault]:
    """Return one fault that names all keys of *message* that the API does not accept, if any."""
    role = message["role"]
    unknown = [repr(key) for key in message if not is_message_key(role, key)]
    if not unknown:
        return []
    return [Fault("message-key", f"a message has no key {', '.join(unknown)}")]


def _text_faults(message: Message) -> list[Fault]:
    """Return the faults of *message*, whose content is text or empty."""
    text = message["content"]
    if is_blank(text):
        return [] if is_directive(message) else [Fault("empty", "it is empty")]
    fault = encoding_fault(text)
    return [_value_fault(fault)] if fault else []


def _value_fault(fault: str, place: int | None = None) -> Fault:
    """Return *fault*, a value that JSON cannot express, as a fault of block *place*."""
    if fault == SURROGATE:
        return Fault("surrogate", fault, place)
    return Fault("value", f"it holds {fault}", place)


def _block_faults(
    role: str, name: str, block: Block, get: Callable[..., Any]
) -> Iterator[tuple[str, str]]:
    """Yield the rules that a *block* of the kind *name* breaks, each with a text.

    *get* returns the value of a key of the block.
    """
    if not can_contain(role, name):
        article = "an" if role == "assistant" else "a"
        noun = "thinking block" if name in THINKING else name
        yield "speaker", f"a {noun} in {article} {role} message"
    if name == "text":
        if is_blank(get("text")):
            yield "empty", "an empty text block"
    elif name in CALLS:
        yield from _call_faults(name, block, get)
    elif name == "tool_result" or name in SERVER_RESULTS:
        yield from _result_faults(name, get)
    elif name in THINKING:
        if not is_signed(block):
            yield "thinking", "a thinking block without its signature"
        if get("cache_control"):
            yield "thinking", "a thinking block with a cache mark"
    elif name == "compaction":
        yield from _compaction_faults(block)
    elif not name:
        yield "block-type", "a block without a type"


def is_message_key(role: str, key: object) -> bool:
    """Return True if a message of *role* may have *key*."""
    return key in (_SYSTEM_KEYS if role == "system" else MESSAGE_KEYS)


def is_directive(message: Message) -> bool:
    """Return True if *message* is a system message without content that has ``output_config``.

    It only sets options of the output, and may be anywhere in the conversation. An empty system
    message without ``output_config`` is no directive.
    """
    is_empty = message["role"] == "system" and not message["content"]
    return is_empty and bool(field(message, "output_config"))


def is_blank(text: object) -> bool:
    """Return True if the API would refuse a text block with *text* as empty."""
    return not text or (isinstance(text, str) and text.isspace())


def _compaction_faults(block: Block) -> Iterator[tuple[str, str]]:
    """Yield the rule and a description for each fault of a compaction *block*."""
    if field(block, "content") == "":
        yield "compaction", "an empty compaction block"
    if surplus_keys(block, "compaction"):
        yield "block-key", "a compaction block with a key that is not its own"


def _result_faults(name: str, get: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Yield the rule and a description for each fault of a result of the kind *name*.

    *get* returns a field of the block. Only the content of a ``tool_result`` is checked.
    """
    call_id = get("tool_use_id")
    if not is_id(call_id, name):
        yield "tool-id", f"the API does not accept the tool_use_id {id_repr(call_id)}"
    if name != "tool_result":
        return
    content = get("content")
    if isinstance(content, list | tuple) and not all(kind(inner) for inner in content):
        yield "block-type", "a tool_result that contains a block without a type"
    if not get("is_error"):
        return
    if not content:
        yield "error-result", "an error without a text"
    elif not isinstance(content, str) and any(kind(inner) != "text" for inner in content):
        yield "error-result", "an error with a block that is not text"


def _call_faults(name: str, block: Block, get: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Yield the rule and a description for each fault of a call of the kind *name*.

    *get* returns a field of *block*.
    """
    call_id = get("id")
    if not is_id(call_id, name):
        yield "tool-id", f"the API does not accept the id {id_repr(call_id)}"
    if not is_tool_name(get("name")):
        yield "tool-name", f"a {name} without a valid tool name"
    arguments = get("input")
    if not is_object(arguments):
        yield "tool-input", f"a {name} whose input is {type(arguments).__name__}, not an object"
    if surplus_keys(block, name):
        caller = type(get("caller")).__name__
        yield "block-key", f"a {name} whose caller is {caller}, not an object"


def can_contain(role: str, name: str) -> bool:
    """Return True if a message of *role* can contain a block of the kind *name*.

    Any message can contain a block of an unknown kind.
    """
    return role in _ROLES_BY_KIND.get(name, ROLES)


def is_server_result(name: str) -> bool:
    """Return True if blocks of the kind *name* are results of tools that the server runs."""
    return name.endswith("_tool_result")


def surplus_keys(block: Block, name: str) -> list[str]:
    """Return the keys that the API refuses in a call or a compaction block of the kind *name*."""
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
    """Return True if blocks of the kind *name* have the id of a call that the API itself runs."""
    return name in _SERVER_ID_KINDS


def is_id(value: object, name: str) -> bool:
    """Return True if the API accepts *value* as the id of a call in a block of the kind *name*."""
    pattern = _SERVER_ID if name in _SERVER_ID_KINDS else _ID
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def is_tool_name(value: object) -> bool:
    """Return True if the API accepts *value* as the name of a tool."""
    return isinstance(value, str) and 0 < len(value) <= MAX_TOOL_NAME


def is_object(value: object) -> bool:
    """Return True if the API accepts *value* as the input of a call."""
    return isinstance(value, MAPPINGS) or hasattr(value, "model_dump")


def is_signed(block: Block) -> bool:
    """Return True if a thinking *block* has a signature, or the data of redacted thinking.

    These prove to the API that the model wrote the thinking.
    """
    key = "signature" if kind(block) == "thinking" else "data"
    proof = field(block, key)
    return isinstance(proof, str) and bool(proof)


def id_repr(call_id: object) -> str:
    """Return *call_id* as an error shows it: shortened, in quotes; its type if it is no text."""
    if not isinstance(call_id, str):
        return type(call_id).__name__
    if len(call_id) > _MAX_QUOTED_ID:
        call_id = f"{call_id[:_MAX_QUOTED_ID]}…"
    return repr(call_id)
