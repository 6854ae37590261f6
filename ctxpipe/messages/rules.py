"""What the Messages API demands of a conversation: one table of rules, and the check that knows
them.

Each rule rests on the API's reference, on its guides, or on the words of its refusals. Where these
are silent, nothing is refused: a block of a kind that is not known here passes.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..errors import InvalidHistory
from ..words import one_line
from .bulk import MAPPINGS
from .foreign import history_hint, message_hint
from .values import SURROGATE, encoding_fault
from .vocabulary import CALLS, SERVER_CALLS, THINKING, blocks, field, head_length, kind, program

if TYPE_CHECKING:
    from .vocabulary import Block, Message

__all__ = [
    "MAX_CACHE_MARKS",
    "ROLES",
    "RULES",
    "CacheMarks",
    "Problem",
    "Rule",
    "check",
    "ensure_messages",
]

MAX_CACHE_MARKS = 4
ROLES = frozenset({"user", "assistant", "system"})
SPOKEN = frozenset({"text", "thinking"})  # blocks that hold their text under the name of their type

_MESSAGE_KEYS = frozenset({"role", "content"})
_SPEAKERS = ("user", "assistant")
_SYSTEM_KEYS = _MESSAGE_KEYS | {"clear_at", "output_config"}
_ASSISTANT_ONLY = CALLS | THINKING
_NOT_IN_SYSTEM = frozenset({"image", "document", "search_result", "container_upload", "compaction"})
SERVER_RESULTS = frozenset(
    f"{tool}_tool_result"
    for tool in (
        "advisor",
        "bash_code_execution",
        "code_execution",
        "mcp",
        "text_editor_code_execution",
        "tool_search",
        "web_fetch",
        "web_search",
    )
)
_ID = re.compile(r"[a-zA-Z0-9_-]+")
_SERVER_ID = re.compile(r"srvtoolu_[a-zA-Z0-9_]+")
_SERVER_ID_KINDS = (SERVER_RESULTS - {"mcp_tool_result"}) | {"server_tool_use"}
_DUMPED_KEYS = frozenset({"citations", "text"})  # a dump of a compaction block adds them
MAX_TOOL_NAME = 200
_SHOWN = 60  # characters of an id in a sentence


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the Messages API: its *name*, what it *says*, and what *repair* does about it."""

    name: str
    says: str
    repair: str


RULES = (
    Rule(
        "empty",
        "A message says something, and no text block is blank.",
        "The block goes, or the message.",
    ),
    Rule(
        "first-message",
        "The first message is the user's, or opens with a compaction block.",
        "A line opens it.",
    ),
    Rule(
        "message-key", "A message has `role` and `content`, and no other key.", "The other keys go."
    ),
    Rule(
        "block-type", "Each block has a type.", "A text becomes a text block; anything else goes."
    ),
    Rule(
        "block-key", "A caller is an object; a compaction block has its own keys.", "The key goes."
    ),
    Rule(
        "speaker",
        "Only the assistant calls tools and thinks; only the user answers calls.",
        "The block goes.",
    ),
    Rule(
        "results-first",
        "Tool results come before all else in their message.",
        "They move to the front.",
    ),
    Rule(
        "thinking",
        "Thinking is signed, unmarked, and not the end of its message.",
        "It, or its mark, goes.",
    ),
    Rule(
        "tool-id",
        "Ids of calls have the form that the API gives them.",
        "Call and result get the same other id.",
    ),
    Rule(
        "repeated-id",
        "The ids of one message's calls differ.",
        "The later call gets an id of its own.",
    ),
    Rule(
        "tool-name",
        "A call names its tool, in 1 to 200 characters.",
        "`unknown_tool`, or the first 200.",
    ),
    Rule(
        "tool-input",
        "The input of a call is an object.",
        "JSON text is read; anything else goes under `input`.",
    ),
    Rule(
        "tool-pair",
        "The next message answers each call, once.",
        "A result that says so is added; an orphan goes.",
    ),
    Rule(
        "error-result",
        "A result that is an error says so, in text alone.",
        "Words are added; else it is no error.",
    ),
    Rule(
        "server-tool",
        "A server tool's call and result lie in one turn.",
        "The half that is left goes.",
    ),
    Rule("system-place", "A later system message ends what the user said.", "It moves behind it."),
    Rule(
        "compaction",
        "A compaction block is not empty; a signed one comes first.",
        "It goes, or what it replaced.",
    ),
    Rule(
        "cache-marks",
        "A request has at most four cache marks, the longest first.",
        "The last stay, shortened.",
    ),
    Rule("surrogate", "Every text can be sent as UTF-8.", "Lone surrogates become U+FFFD."),
    Rule("value", "The client library can encode every value.", ""),
)
"""The rules that `check` knows.

One with an empty *repair* is refused with InvalidHistory: nothing can be done.
"""


@dataclass(frozen=True, slots=True)
class Problem:
    """A *rule* of the Messages API that message *index* breaks, in its *block* where it is a single
    one.
    """

    index: int
    text: str
    block: int | None = None
    rule: str = ""

    def __str__(self) -> str:
        where = (
            f"message {self.index}"
            if self.block is None
            else f"message {self.index}, block {self.block}"
        )
        return f"{where}: {self.text}"


# Shape --------------------------------------------------------------------------------------------


def ensure_messages(messages: object, start: int = 0) -> None:
    """Raise InvalidHistory, naming the index, unless *messages* from *start* on have the shape of
    messages.
    """
    if not isinstance(messages, list):
        hint = history_hint(messages)
        raise InvalidHistory(
            f"a history is a list of messages, not {type(messages).__name__}{hint}"
        )
    for index in range(start, len(messages)):
        if not _is_common(messages[index]):
            _ensure_message(index, messages[index])


def _is_common(message: object) -> bool:
    """Whether *message* is of the form that nearly all have, so that nothing is left to look at."""
    if (
        type(message) is not dict
        or len(message) != len(_MESSAGE_KEYS)
        or message.get("role") not in _SPEAKERS
    ):
        return False
    content = message.get("content")
    if type(content) is str:
        return True
    return type(content) is list and all(map(_is_common_block, content))


def _is_common_block(block: object) -> bool:
    if type(block) is not dict:
        return False
    name = block.get("type")
    if name == "tool_use":
        return True
    if name == "tool_result":
        return type(block.get("content")) is str
    return name == "text" and type(block.get("text")) is str


def _ensure_message(index: int, message: object) -> None:
    hint = message_hint(message)
    if hint:
        raise InvalidHistory(f"message {index} {hint}")
    if not isinstance(message, MAPPINGS):
        name = type(message).__name__
        way_out = (
            '; append {"role": "assistant", "content": reply.content}'
            if hasattr(message, "stop_reason")
            else ""
        )
        raise InvalidHistory(
            f"message {index} is {name}, not a mapping with role and content{way_out}"
        )
    for key in ("role", "content"):
        if key not in message:
            raise InvalidHistory(f"message {index} has no {key}")
    if not isinstance(message["role"], str) or message["role"] not in ROLES:
        role = one_line(repr(message["role"]))
        raise InvalidHistory(f"message {index} has the role {role}, not one of {sorted(ROLES)}")
    content = message["content"]
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list | tuple):
        raise InvalidHistory(
            f"message {index} has {type(content).__name__} as content, not text or a list of blocks"
        )
    for place, block in enumerate(content):
        fault = _shape_fault(block)
        if fault:
            raise InvalidHistory(f"block {place} of message {index} {fault}")


def _shape_fault(block: object) -> str:
    """What keeps *block* from being read as a content block, "" when nothing does."""
    fault, held = _own_fault(block), _held_blocks(block)
    while not fault and held:
        inner = held.pop()
        fault = _own_fault(inner)
        if fault:
            return f"holds a block that {fault}"
        held += _held_blocks(inner)
    return fault


def _own_fault(block: object) -> str:
    if not (isinstance(block, MAPPINGS) or hasattr(block, "model_dump")):
        return f"is {type(block).__name__}, not a mapping"
    name = kind(block)
    if name in SPOKEN and not isinstance(field(block, name), str | None):
        return f"has {type(field(block, name)).__name__} as {name}, not text"
    content = field(block, "content") if name == "tool_result" else None
    if content is None or isinstance(content, str | list | tuple):
        return ""
    return (
        f"is a tool_result with {type(content).__name__} as content, not text or a list of blocks"
    )


def _held_blocks(block: Block) -> list[object]:
    content = field(block, "content") if kind(block) == "tool_result" else None
    return list(content) if isinstance(content, list | tuple) else []


# The check ----------------------------------------------------------------------------------------


class MarksBeside(NamedTuple):
    """The cache_control marks of a request that are not in its messages.

    *begin_short*: one in the tools or the system prompt is for less than an hour, so that none for an hour may follow.
    """

    number: int = 0
    begin_short: bool = False


NO_MARKS = MarksBeside()


def check(
    messages: Sequence[Message],
    start: int = 0,
    *,
    encoding: bool = True,
    marks: CacheMarks | None = None,
    beside: MarksBeside = NO_MARKS,
) -> list[Problem]:
    """The rules of the Messages API that *messages* break, from message *start* on; empty when they
    are valid.

    A call still waiting for its result, at the end, is no problem; without *encoding* neither are
    lone surrogates (the stages still want to store them as they are). *marks* knows how many cache
    marks there are before *start*; without it they are counted only in a check of the whole.
    *beside* are the marks in the rest of the request.
    """
    head = head_length(messages)
    found: list[Problem] = []
    if start <= head < len(messages) and not may_open(messages[head]):
        found.append(Problem(head, "the first message is not the user's", rule="first-message"))
    for index in range(start, len(messages)):
        message = messages[index]
        if index < head:  # the head stays as it is, as long as it can be sent at all
            found += _value_problems(index, message["content"], None) if encoding else []
            continue
        kinds = [kind(block) for block in blocks(message)]
        found += message_problems(index, message, kinds, encoding=encoding)
        found += pair_problems(messages, index, kinds)
        found += _turn_problems(messages, index, kinds, head)
        found += _place_problems(messages, index, kinds, head)
    if start and marks is None:
        return found
    return found + (marks or CacheMarks()).problems(messages, beside)


def may_open(message: Message) -> bool:
    """Whether a conversation may begin with *message*."""
    return message["role"] == "user" or any(
        kind(block) == "compaction" for block in blocks(message)[:1]
    )


# One message --------------------------------------------------------------------------------------


def message_problems(
    index: int, message: Message, kinds: Sequence[str], *, encoding: bool
) -> list[Problem]:
    """What is wrong with *message* alone, whose blocks are of these *kinds*."""
    role, content = message["role"], message["content"]
    found = [] if len(message) == len(_MESSAGE_KEYS) else _key_problems(index, message)
    if isinstance(content, str) and not is_blank(content):
        return found + _value_problems(index, content, None) if encoding else found
    if not content or isinstance(content, str):
        return (
            found
            if is_directive(message)
            else [*found, Problem(index, "it is empty", rule="empty")]
        )
    results = kinds.count("tool_result")
    for place, (name, block) in enumerate(zip(kinds, blocks(message), strict=True)):
        for rule, fault in _faults(role, name, block):
            found.append(Problem(index, fault, place, rule))
        if place >= results and name == "tool_result":
            found.append(
                Problem(index, "a tool_result after another block", place, "results-first")
            )
        if encoding and name not in THINKING:
            found += _value_problems(index, block, place)
    if role == "assistant" and kinds[-1] in THINKING:
        found.append(Problem(index, "it ends in a thinking block", len(kinds) - 1, "thinking"))
    return found


def _key_problems(index: int, message: Message) -> list[Problem]:
    names = ", ".join(repr(key) for key in message if not is_message_key(message["role"], key))
    return [Problem(index, f"a message has no key {names}", rule="message-key")] if names else []


def is_message_key(role: str, key: object) -> bool:
    """Whether a message of *role* may have *key*."""
    return key in (_SYSTEM_KEYS if role == "system" else _MESSAGE_KEYS)


def is_directive(message: Message) -> bool:
    """Whether *message* is a system message that only sets options: it may be empty, and stand
    anywhere.
    """
    return (
        message["role"] == "system"
        and not message["content"]
        and bool(field(message, "output_config"))
    )


def is_blank(text: object) -> bool:
    """Whether a text block with *text* would be refused as empty."""
    return not text or (isinstance(text, str) and text.isspace())


def _value_problems(index: int, value: object, place: int | None) -> list[Problem]:
    fault = encoding_fault(value)
    if not fault:
        return []
    if fault == SURROGATE:
        return [Problem(index, fault, place, "surrogate")]
    return [Problem(index, f"it holds {fault}", place, "value")]


def _faults(role: str, name: str, block: Block) -> Iterator[tuple[str, str]]:
    """Rule and words for each fault of a single *block* of a kind called *name*."""
    if not is_said_by(role, name):
        article = "an" if role == "assistant" else "a"
        yield "speaker", f"a {_named(name)} in {article} {role} message"
    if name in CALLS:
        yield from _call_faults(name, block)
    elif name == "tool_result" or name in SERVER_RESULTS:
        yield from _result_faults(name, block)
    elif name in THINKING:
        yield from _thinking_faults(block)
    elif name == "compaction":
        yield from _compaction_faults(block)
    elif is_blank_text(block):
        yield "empty", "an empty text block"
    elif not name:
        yield "block-type", "a block without a type"


def _thinking_faults(block: Block) -> Iterator[tuple[str, str]]:
    if not is_signed(block):
        yield "thinking", "a thinking block without its signature"
    if field(block, "cache_control"):
        yield "thinking", "a thinking block with a cache mark"


def _compaction_faults(block: Block) -> Iterator[tuple[str, str]]:
    if field(block, "content") == "":
        yield "compaction", "an empty compaction block"
    if surplus_keys(block):
        yield "block-key", "a compaction block with a key that is not its own"


def _result_faults(name: str, block: Block) -> Iterator[tuple[str, str]]:
    if not is_id(field(block, "tool_use_id"), name):
        yield (
            "tool-id",
            f"the tool_use_id {_short(field(block, 'tool_use_id'))} is none that the API takes",
        )
    if name != "tool_result":
        return
    content = field(block, "content")
    if isinstance(content, list | tuple) and not all(map(kind, content)):
        yield "block-type", "a tool_result that holds a block without a type"
    if field(block, "is_error"):
        if not content:
            yield "error-result", "an error that says nothing"
        elif not isinstance(content, str) and any(kind(held) != "text" for held in content):
            yield "error-result", "an error that is not text alone"


def _call_faults(name: str, block: Block) -> Iterator[tuple[str, str]]:
    if not is_id(field(block, "id"), name):
        yield "tool-id", f"the id {_short(field(block, 'id'))} is none that the API takes"
    if not is_tool_name(field(block, "name")):
        yield "tool-name", f"a {name} that names no tool"
    if not is_object(field(block, "input")):
        yield (
            "tool-input",
            f"a {name} whose input is {type(field(block, 'input')).__name__}, not an object",
        )
    if surplus_keys(block):
        yield (
            "block-key",
            f"a {name} whose caller is {type(field(block, 'caller')).__name__}, not an object",
        )


def is_said_by(role: str, name: str) -> bool:
    """Whether a block of the kind *name* may stand in a message of *role*.

    Of unknown kinds nothing is said.
    """
    if name == "tool_result":
        return role == "user"
    if name in _ASSISTANT_ONLY or name in SERVER_RESULTS:
        return role == "assistant"
    return role != "system" or name not in _NOT_IN_SYSTEM


def is_server_result(name: str) -> bool:
    """Whether blocks of the kind *name* are results of tools that the server runs."""
    return name.endswith("_tool_result")


def is_blank_text(block: Block) -> bool:
    """Whether *block* is a text block that would be refused as empty."""
    return kind(block) == "text" and is_blank(field(block, "text"))


def surplus_keys(block: Block) -> list[str]:
    """The keys of a call or a compaction block that the API refuses to see there."""
    held = block if isinstance(block, MAPPINGS) else getattr(block, "model_fields_set", ())
    if kind(block) == "compaction":
        extra = getattr(block, "model_extra", None) or {}
        return [key for key in (*held, *extra) if key in _DUMPED_KEYS]
    return ["caller"] if "caller" in held and not is_object(field(block, "caller")) else []


def has_server_id(name: str) -> bool:
    """Whether blocks of the kind *name* carry the id of a tool that the API runs itself."""
    return name in _SERVER_ID_KINDS


def is_id(value: object, name: str = "") -> bool:
    """Whether the API takes *value* as the id of a call in a block of the kind *name*."""
    pattern = _SERVER_ID if has_server_id(name) else _ID
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def is_tool_name(value: object) -> bool:
    """Whether the API takes *value* as the name of the tool that is called."""
    return isinstance(value, str) and 0 < len(value) <= MAX_TOOL_NAME


def is_object(value: object) -> bool:
    """Whether the API takes *value* as the input of a call."""
    return isinstance(value, MAPPINGS) or hasattr(value, "model_dump")


def is_signed(block: Block) -> bool:
    """Whether a thinking *block* carries what proves it to be the model's own."""
    proof = field(block, "signature" if kind(block) == "thinking" else "data")
    return isinstance(proof, str) and bool(proof)


def _named(name: str) -> str:
    return "thinking block" if name in THINKING else name


def _short(value: object) -> str:
    if not isinstance(value, str):
        return type(value).__name__
    return repr(value if len(value) <= _SHOWN else f"{value[:_SHOWN]}…")


# Calls and results --------------------------------------------------------------------------------


def pair_problems(messages: Sequence[Message], index: int, kinds: Sequence[str]) -> list[Problem]:
    """Which calls and results of message *index*, whose blocks are of these *kinds*, are without
    the other half.
    """
    found: list[Problem] = []
    message = messages[index]
    if "tool_use" in kinds and index + 1 < len(messages):
        calls = _ids(message, "tool_use", "id")
        if len(calls) > 1 and len(set(calls)) < len(calls):
            words = "the id {} for more than one tool_use"
            found += _at(
                message, index, "tool_use", _surplus(calls, list(set(calls))), "repeated-id", words
            )
        words = "the tool_use {} has no tool_result in the next message"
        lone = _surplus(calls, _ids(messages[index + 1], *_RESULT))
        found += _at(message, index, "tool_use", lone, "tool-pair", words)
    if "tool_result" in kinds:
        before = _ids(messages[index - 1], "tool_use", "id") if index else []
        words = "the tool_result {} has no tool_use in the message before"
        lone = _surplus(_ids(message, *_RESULT), before)
        found += _at(message, index, "tool_result", lone, "tool-pair", words)
    return found


_RESULT = ("tool_result", "tool_use_id")


def _ids(message: Message, block_kind: str, name: str) -> list[str]:
    return [str(field(block, name, "")) for block in blocks(message) if kind(block) == block_kind]


def _surplus(ours: Sequence[str], theirs: Sequence[str]) -> Iterable[str]:
    """The ids that are in *ours* more often than in *theirs*."""
    return () if ours == theirs else Counter(ours) - Counter(theirs)


def _at(
    message: Message, index: int, block_kind: str, ids: Iterable[str], rule: str, words: str
) -> Iterator[Problem]:
    """A problem for each of *ids*, at the last block of that kind which has it."""
    for name in ids:
        places = [
            place for place, block in enumerate(blocks(message)) if _is(block, block_kind, name)
        ]
        yield Problem(index, words.format(_short(name)), places[-1] if places else None, rule)


def _is(block: Block, block_kind: str, name: str) -> bool:
    return (
        kind(block) == block_kind
        and str(field(block, "id" if block_kind in CALLS else "tool_use_id", "")) == name
    )


# Server tools -------------------------------------------------------------------------------------


def closes_turn(message: Message) -> bool:
    """Whether the user says more than the results of calls: the assistant's turn before it is over
    then.
    """
    if message["role"] != "user":
        return False
    content = message["content"]
    return (
        bool(content)
        if isinstance(content, str)
        else any(kind(b) != "tool_result" for b in blocks(message))
    )


def server_call(block: Block) -> str | None:
    """The id of the server tool's call that *block* is."""
    return str(field(block, "id", "")) if kind(block) in SERVER_CALLS else None


def server_result(block: Block) -> str | None:
    """The id of the server tool's call whose result *block* is."""
    return str(field(block, "tool_use_id", "")) if is_server_result(kind(block)) else None


def needs_call(block: Block) -> bool:
    """Whether *block*, a server tool's result by its kind, is surely one: of a known kind, or with
    such an id.
    """
    return kind(block) in SERVER_RESULTS or is_id(field(block, "tool_use_id"), "server_tool_use")


def _turn_problems(
    messages: Sequence[Message], index: int, kinds: Sequence[str], head: int
) -> list[Problem]:
    """Server tools whose call and result are not in one turn, as far as message *index* tells."""
    message = messages[index]
    if message["role"] == "user":
        if not closes_turn(message):
            return []
        return [*_unfinished(messages, index, head), *_disturbed(messages, index)]
    if CALLS.isdisjoint(kinds) and not any(map(is_server_result, kinds)):
        return []
    found: list[Problem] = []
    for place, block in enumerate(blocks(message)):
        answered, caller = server_result(block), program(block)
        if (
            answered is not None
            and needs_call(block)
            and not _is_open(messages, (index, place), answered, head)
        ):
            words = f"the {kind(block)} {_short(answered)} has no call before it in its turn"
            found.append(Problem(index, words, place, "server-tool"))
        if caller is not None and not any(
            server_call(b) == caller for _, b in _back(messages, (index, place), head)
        ):
            words = f"the call's caller {_short(caller)} is not in its turn"
            found.append(Problem(index, words, place, "server-tool"))
    return found


def _back(
    messages: Sequence[Message], place: tuple[int, int], head: int
) -> Iterator[tuple[tuple[int, int], Block]]:
    """The assistant's blocks of the turn before *place*, the last one first."""
    index, stop = place
    while index >= head and not closes_turn(messages[index]):
        if messages[index]["role"] == "assistant":
            held = blocks(messages[index])
            for number in range(min(stop, len(held)) - 1, -1, -1):
                yield (index, number), held[number]
        index -= 1
        stop = len(blocks(messages[index])) if index >= head else 0


def _is_open(messages: Sequence[Message], place: tuple[int, int], name: str, head: int) -> bool:
    """Whether the server tool's call *name* is made before *place* in its turn, and has no result
    there yet.
    """
    answered = 0
    for _, block in _back(messages, place, head):
        if server_result(block) == name:
            answered += 1
        elif server_call(block) == name:
            if not answered:
                return True
            answered -= 1
    return False


def _unfinished(messages: Sequence[Message], index: int, head: int) -> list[Problem]:
    """The server tools' calls without a result in the turn that ends before message *index*."""
    if index <= head:
        return []
    found: list[Problem] = []
    answered: Counter[str] = Counter()
    for (at, place), block in _back(messages, (index - 1, len(blocks(messages[index - 1]))), head):
        result, call = server_result(block), server_call(block)
        if result is not None:
            answered[result] += 1
        elif call is not None and answered[call]:
            answered[call] -= 1
        elif call is not None:
            words = f"the {kind(block)} {_short(call)} has no result in its turn"
            found.append(Problem(at, words, place, "server-tool"))
    return found[::-1]


def _disturbed(messages: Sequence[Message], index: int) -> Iterator[Problem]:
    """The calls of programs whose results message *index*, which says more, is to bring."""
    before = next(
        (at for at in range(index - 1, -1, -1) if messages[at]["role"] == "assistant"), None
    )
    for place, block in enumerate(blocks(messages[before]) if before is not None else ()):
        if kind(block) == "tool_use" and program(block) is not None:
            words = "the user says more than the results that the call's program waits for"
            yield Problem(before or 0, words, place, "server-tool")


# Places -------------------------------------------------------------------------------------------


def _place_problems(
    messages: Sequence[Message], index: int, kinds: Sequence[str], head: int
) -> list[Problem]:
    """What stands at the wrong place: a system message, or a compaction block that replaces what is
    before it.
    """
    message = messages[index]
    found: list[Problem] = []
    if (
        message["role"] == "system"
        and not is_directive(message)
        and not _follows_user(messages, index)
    ):
        found.append(Problem(index, "a system message after the assistant's", rule="system-place"))
    elif message["role"] == "user" and index > head and _is_system(messages[index - 1]):
        found.append(Problem(index - 1, "a system message before the user's", rule="system-place"))
    if "compaction" in kinds:
        for place, block in enumerate(blocks(message)):
            if kind(block) != "compaction" or (index, place) == (head, 0):
                continue
            if is_replacement(block):
                found.append(
                    Problem(
                        index, "a signed compaction block that is not first", place, "compaction"
                    )
                )
            elif opens_with_replacement(messages[head]):
                found.append(
                    Problem(index, "a compaction block after a signed one", place, "compaction")
                )
    return found


def is_replacement(block: Block) -> bool:
    """Whether *block* is a compaction block that must come first, in the place of what it
    summarizes.
    """
    return (
        kind(block) == "compaction"
        and bool(field(block, "content"))
        and bool(field(block, "signature"))
    )


def opens_with_replacement(message: Message) -> bool:
    """Whether the first block of *message* is a signed compaction block, after which there may be
    no other.
    """
    return any(map(is_replacement, blocks(message)[:1]))


def _is_system(message: Message) -> bool:
    return message["role"] == "system" and not is_directive(message)


def _follows_user(messages: Sequence[Message], index: int) -> bool:
    """Whether the system message *index* comes after the user's, or after a server tool's result."""
    before = next(
        messages[at] for at in range(index - 1, -1, -1) if messages[at]["role"] != "system"
    )
    return before["role"] == "user" or ends_in_server_result(before)


def ends_in_server_result(message: Message) -> bool:
    """Whether the last block of *message* is the result of a tool that the server runs."""
    return any(is_server_result(kind(block)) for block in blocks(message)[-1:])


# Marks for the cache ------------------------------------------------------------------------------


class CacheMarks:
    """The cache_control marks of one conversation, counted from turn to turn at the cost of the new
    messages.
    """

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums = array("I", [0])  # marks in the first n messages

    def rewind(self, known: int) -> None:
        """Forget all but the first *known* messages."""
        del self._sums[known + 1 :]

    def problems(
        self, messages: Sequence[Message], beside: MarksBeside = NO_MARKS
    ) -> list[Problem]:
        """Whether *messages*, with the marks *beside* them, have too many, or one for an hour too
        late.
        """
        most = marks_left(beside)
        if self._extended(messages) > most:
            self.rewind(
                0
            )  # marks are often moved in place from turn to turn: only a fresh count can tell
            if self._extended(messages) > most:
                first = bisect_right(self._sums, 0) - 1
                also = (
                    f", {beside.number} of them in the rest of the request" if beside.number else ""
                )
                words = f"the first of more than {MAX_CACHE_MARKS} cache_control marks{also}"
                return [Problem(first, words, _first_mark(messages[first]), "cache-marks")]
        for index, (place, _) in late_hours(messages, self._marked(), beside):
            return [
                Problem(index, "a cache mark for an hour after a shorter one", place, "cache-marks")
            ]
        return []

    def _marked(self) -> Iterator[int]:
        """The messages with marks, at their own cost alone."""
        marks = 0
        while marks < self._sums[-1]:
            index = bisect_right(self._sums, marks) - 1
            yield index
            marks = self._sums[index + 1]

    def _extended(self, messages: Sequence[Message]) -> int:
        for index in range(len(self._sums) - 1, len(messages)):
            self._sums.append(self._sums[-1] + len(list(cache_marks(messages[index]))))
        return self._sums[-1]


def marks_left(beside: MarksBeside) -> int:
    """How many cache marks the messages may have, with those *beside* them in the request."""
    return max(0, MAX_CACHE_MARKS - beside.number)


def is_for_hour(mark: object) -> bool:
    """Whether *mark*, a value of ``cache_control``, is for an hour instead of five minutes."""
    return bool(field(mark, "ttl") == "1h")


def cache_marks(message: Message) -> Iterator[tuple[int, int | None]]:
    """Where *message* is marked for the cache: the block's index, and the inner one where a tool
    result holds it.
    """
    for place, block in enumerate(blocks(message)):
        content = field(block, "content")  # of a tool result
        if isinstance(content, list | tuple):
            yield from (
                (place, inner) for inner, held in enumerate(content) if field(held, "cache_control")
            )
        if field(block, "cache_control"):
            yield place, None


def late_hours(
    messages: Sequence[Message], marked: Iterable[int], beside: MarksBeside
) -> Iterator[tuple[int, tuple[int, int | None]]]:
    """Of the messages at the indexes *marked*, the marks for an hour that come after a shorter one."""
    is_after = beside.begin_short
    for index in marked:
        held = blocks(messages[index])
        for place, inner in cache_marks(messages[index]):
            block = held[place] if inner is None else field(held[place], "content")[inner]
            is_hour = is_for_hour(field(block, "cache_control"))
            if is_hour and is_after:
                yield index, (place, inner)
            is_after = is_after or not is_hour


def _first_mark(message: Message) -> int | None:
    return next((place for place, _ in cache_marks(message)), None)
