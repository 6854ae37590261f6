"""The rules of the Messages API for a conversation, and the check of them.

Each rule rests on the API's reference, on its guides, or on the words of its refusals. Where these
are silent, nothing is refused: a block of an unknown kind passes.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .bulk import MAPPINGS
from .values import SURROGATE, encoding_fault
from .vocabulary import (
    CALLS,
    SERVER_CALLS,
    THINKING,
    Block,
    Message,
    blocks,
    field,
    head_length,
    kind,
    program,
)

MAX_CACHE_MARKS = 4

_MESSAGE_KEYS = frozenset({"role", "content"})
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
    """A *rule* of the Messages API that message *index* breaks.

    *block* is the index of the block at fault, None where the message as a whole is at fault.
    """

    index: int
    text: str
    block: int | None = None
    rule: str = ""

    def __str__(self) -> str:
        if self.block is None:
            return f"message {self.index}: {self.text}"
        return f"message {self.index}, block {self.block}: {self.text}"


# The check ----------------------------------------------------------------------------------------


class MarksBeside(NamedTuple):
    """The cache_control marks of a request that are not in its messages.

    *begin_short*: a mark in the tools or the system prompt is for less than an hour, so that no
    mark for an hour may follow it.
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
    """The rules of the Messages API that *messages* break, from message *start* on.

    A call at the end that still waits for its result is no problem. Without *encoding* neither are
    lone surrogates (the stages store them as they are). *marks* knows how many cache marks there
    are before *start*; without it they are counted only in a check of all messages. *beside* are
    the marks in the rest of the request.
    """
    head = head_length(messages)
    problems: list[Problem] = []
    if start <= head < len(messages) and not may_open(messages[head]):
        problems.append(Problem(head, "the first message is not the user's", rule="first-message"))
    for index in range(start, len(messages)):
        message = messages[index]
        if index < head:  # the head stays as it is, as long as it can be sent at all
            if encoding:
                problems += _value_problems(index, message["content"], None)
            continue
        kinds = [kind(block) for block in blocks(message)]
        problems += message_problems(index, message, kinds, encoding=encoding)
        problems += pair_problems(messages, index, kinds)
        problems += _turn_problems(messages, index, kinds, head)
        problems += _place_problems(messages, index, kinds, head)
    if start and marks is None:
        return problems
    if marks is None:
        marks = CacheMarks()
    return problems + marks.problems(messages, beside)


def may_open(message: Message) -> bool:
    """Whether a conversation may begin with *message*."""
    if message["role"] == "user":
        return True
    content = blocks(message)
    return bool(content) and kind(content[0]) == "compaction"


# One message --------------------------------------------------------------------------------------


def message_problems(
    index: int, message: Message, kinds: Sequence[str], *, encoding: bool
) -> list[Problem]:
    """What is wrong with *message* alone, whose blocks are of these *kinds*."""
    role = message["role"]
    content = message["content"]
    problems: list[Problem] = []
    if len(message) != len(_MESSAGE_KEYS):
        problems += _key_problems(index, message)
    if isinstance(content, str) and not is_blank(content):
        if encoding:
            problems += _value_problems(index, content, None)
        return problems
    if not content or isinstance(content, str):
        if not is_directive(message):
            problems.append(Problem(index, "it is empty", rule="empty"))
        return problems
    results = kinds.count("tool_result")
    for place, block in enumerate(blocks(message)):
        name = kinds[place]
        for rule, fault in _faults(role, name, block):
            problems.append(Problem(index, fault, place, rule))
        if place >= results and name == "tool_result":
            text = "a tool_result after another block"
            problems.append(Problem(index, text, place, "results-first"))
        if encoding and name not in THINKING:
            problems += _value_problems(index, block, place)
    if role == "assistant" and kinds[-1] in THINKING:
        problems.append(Problem(index, "it ends in a thinking block", len(kinds) - 1, "thinking"))
    return problems


def _key_problems(index: int, message: Message) -> list[Problem]:
    role = message["role"]
    unknown = [repr(key) for key in message if not is_message_key(role, key)]
    if not unknown:
        return []
    names = ", ".join(unknown)
    return [Problem(index, f"a message has no key {names}", rule="message-key")]


def is_message_key(role: str, key: object) -> bool:
    """Whether a message of *role* may have *key*."""
    if role == "system":
        return key in _SYSTEM_KEYS
    return key in _MESSAGE_KEYS


def is_directive(message: Message) -> bool:
    """Whether *message* is a system message that only sets options.

    Such a message may be empty, and be anywhere in the conversation.
    """
    if message["role"] != "system" or message["content"]:
        return False
    return bool(field(message, "output_config"))


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
    """The rule and the text of each fault of a single *block* of the kind *name*."""
    if not is_said_by(role, name):
        article = "an" if role == "assistant" else "a"
        what = "thinking block" if name in THINKING else name
        yield "speaker", f"a {what} in {article} {role} message"
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
    call_id = field(block, "tool_use_id")
    if not is_id(call_id, name):
        yield "tool-id", f"the tool_use_id {_quote(call_id)} is none that the API takes"
    if name != "tool_result":
        return
    content = field(block, "content")
    if isinstance(content, list | tuple) and not all(map(kind, content)):
        yield "block-type", "a tool_result that holds a block without a type"
    if not field(block, "is_error"):
        return
    if not content:
        yield "error-result", "an error that says nothing"
    elif not isinstance(content, str) and any(kind(inner) != "text" for inner in content):
        yield "error-result", "an error that is not text alone"


def _call_faults(name: str, block: Block) -> Iterator[tuple[str, str]]:
    call_id = field(block, "id")
    if not is_id(call_id, name):
        yield "tool-id", f"the id {_quote(call_id)} is none that the API takes"
    if not is_tool_name(field(block, "name")):
        yield "tool-name", f"a {name} that names no tool"
    arguments = field(block, "input")
    if not is_object(arguments):
        yield "tool-input", f"a {name} whose input is {type(arguments).__name__}, not an object"
    if surplus_keys(block):
        caller = type(field(block, "caller")).__name__
        yield "block-key", f"a {name} whose caller is {caller}, not an object"


def is_said_by(role: str, name: str) -> bool:
    """Whether a block of the kind *name* may be in a message of *role*; unknown kinds may."""
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
    if isinstance(block, MAPPINGS):
        keys: Iterable[str] = block
    else:
        keys = getattr(block, "model_fields_set", ())
    if kind(block) == "compaction":
        extra = getattr(block, "model_extra", None) or {}
        return [key for key in (*keys, *extra) if key in _DUMPED_KEYS]
    if "caller" in keys and not is_object(field(block, "caller")):
        return ["caller"]
    return []


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
    key = "signature" if kind(block) == "thinking" else "data"
    proof = field(block, key)
    return isinstance(proof, str) and bool(proof)


def _quote(value: object) -> str:
    if not isinstance(value, str):
        return type(value).__name__
    if len(value) > _SHOWN:
        value = f"{value[:_SHOWN]}…"
    return repr(value)


# Calls and results --------------------------------------------------------------------------------


def pair_problems(messages: Sequence[Message], index: int, kinds: Sequence[str]) -> list[Problem]:
    """The calls and results of message *index* that have no counterpart.

    *kinds* are the kinds of its blocks.
    """
    problems: list[Problem] = []
    message = messages[index]
    if "tool_use" in kinds and index + 1 < len(messages):
        calls = _ids(message, "tool_use")
        distinct = set(calls)
        if len(distinct) < len(calls):
            text = "the id {} for more than one tool_use"
            repeated = _surplus(calls, list(distinct))
            problems += _id_problems(message, index, "tool_use", repeated, "repeated-id", text)
        text = "the tool_use {} has no tool_result in the next message"
        unanswered = _surplus(calls, _ids(messages[index + 1], "tool_result"))
        problems += _id_problems(message, index, "tool_use", unanswered, "tool-pair", text)
    if "tool_result" in kinds:
        calls = []
        if index:
            calls = _ids(messages[index - 1], "tool_use")
        text = "the tool_result {} has no tool_use in the message before"
        orphans = _surplus(_ids(message, "tool_result"), calls)
        problems += _id_problems(message, index, "tool_result", orphans, "tool-pair", text)
    return problems


def _ids(message: Message, block_kind: str) -> list[str]:
    key = _ID_KEYS[block_kind]
    return [str(field(block, key, "")) for block in blocks(message) if kind(block) == block_kind]


_ID_KEYS = {"tool_use": "id", "tool_result": "tool_use_id"}


def _surplus(ours: Sequence[str], theirs: Sequence[str]) -> Iterable[str]:
    """The ids that are in *ours* more often than in *theirs*."""
    if ours == theirs:
        return ()
    return Counter(ours) - Counter(theirs)


def _id_problems(
    message: Message, index: int, block_kind: str, ids: Iterable[str], rule: str, text: str
) -> Iterator[Problem]:
    """A problem for each of *ids*, at the last block of that kind that has it."""
    key = _ID_KEYS[block_kind]
    for name in ids:
        last = None
        for place, block in enumerate(blocks(message)):
            if kind(block) == block_kind and str(field(block, key, "")) == name:
                last = place
        yield Problem(index, text.format(_quote(name)), last, rule)


# Server tools -------------------------------------------------------------------------------------


def closes_turn(message: Message) -> bool:
    """Whether the user says more than the results of calls, which ends the assistant's turn."""
    if message["role"] != "user":
        return False
    content = message["content"]
    if isinstance(content, str):
        return bool(content)
    return any(kind(block) != "tool_result" for block in blocks(message))


def server_call(block: Block) -> str | None:
    """The id of *block* if it is a server tool's call."""
    if kind(block) not in SERVER_CALLS:
        return None
    return str(field(block, "id", ""))


def server_result(block: Block) -> str | None:
    """The id of the call that *block* answers if it is a server tool's result."""
    if not is_server_result(kind(block)):
        return None
    return str(field(block, "tool_use_id", ""))


def needs_call(block: Block) -> bool:
    """Whether *block*, a server tool's result by its kind, surely is one.

    It is when its kind is known, or its id is that of a server tool's call.
    """
    if kind(block) in SERVER_RESULTS:
        return True
    return is_id(field(block, "tool_use_id"), "server_tool_use")


def _turn_problems(
    messages: Sequence[Message], index: int, kinds: Sequence[str], head: int
) -> list[Problem]:
    """The server tools whose call and result are not in one turn, as message *index* shows."""
    message = messages[index]
    if message["role"] == "user":
        if not closes_turn(message):
            return []
        return [
            *_calls_without_result(messages, index, head),
            *_waiting_program_calls(messages, index),
        ]
    if CALLS.isdisjoint(kinds) and not any(map(is_server_result, kinds)):
        return []
    problems: list[Problem] = []
    for place, block in enumerate(blocks(message)):
        position = (index, place)
        result = server_result(block)
        if (
            result is not None
            and needs_call(block)
            and not _is_pending(messages, position, result, head)
        ):
            text = f"the {kind(block)} {_quote(result)} has no call before it in its turn"
            problems.append(Problem(index, text, place, "server-tool"))
        caller = program(block)
        if caller is not None and not _is_called(messages, position, caller, head):
            text = f"the call's caller {_quote(caller)} is not in its turn"
            problems.append(Problem(index, text, place, "server-tool"))
    return problems


def _blocks_before(
    messages: Sequence[Message], position: tuple[int, int], head: int
) -> Iterator[tuple[tuple[int, int], Block]]:
    """The assistant's blocks of the turn before *position*, the last one first."""
    index, stop = position
    while index >= head and not closes_turn(messages[index]):
        content = blocks(messages[index])
        if messages[index]["role"] == "assistant":
            for place in reversed(range(min(stop, len(content)))):
                yield (index, place), content[place]
        index -= 1
        stop = len(blocks(messages[index])) if index >= head else 0


def _is_called(
    messages: Sequence[Message], position: tuple[int, int], name: str, head: int
) -> bool:
    """Whether the server tool's call *name* is before *position* in its turn."""
    before = _blocks_before(messages, position, head)
    return any(server_call(block) == name for _, block in before)


def _is_pending(
    messages: Sequence[Message], position: tuple[int, int], name: str, head: int
) -> bool:
    """Whether the server tool's call *name* is before *position* and has no result there yet."""
    results = 0
    for _, block in _blocks_before(messages, position, head):
        if server_result(block) == name:
            results += 1
        elif server_call(block) == name:
            if not results:
                return True
            results -= 1
    return False


def _calls_without_result(messages: Sequence[Message], index: int, head: int) -> list[Problem]:
    """The server tools' calls without a result in the turn that ends before message *index*."""
    if index <= head:
        return []
    problems: list[Problem] = []
    results: Counter[str] = Counter()
    end = (index - 1, len(blocks(messages[index - 1])))
    for (at, place), block in _blocks_before(messages, end, head):
        result = server_result(block)
        if result is not None:
            results[result] += 1
            continue
        call = server_call(block)
        if call is None:
            continue
        if results[call]:
            results[call] -= 1
            continue
        text = f"the {kind(block)} {_quote(call)} has no result in its turn"
        problems.append(Problem(at, text, place, "server-tool"))
    return problems[::-1]


def _waiting_program_calls(messages: Sequence[Message], index: int) -> Iterator[Problem]:
    """The calls of programs that message *index* should answer, but which says more."""
    before = index - 1
    while before >= 0 and messages[before]["role"] != "assistant":
        before -= 1
    if before < 0:
        return
    for place, block in enumerate(blocks(messages[before])):
        if kind(block) == "tool_use" and program(block) is not None:
            text = "the user says more than the results that the call's program waits for"
            yield Problem(before, text, place, "server-tool")


# Places -------------------------------------------------------------------------------------------


def _place_problems(
    messages: Sequence[Message], index: int, kinds: Sequence[str], head: int
) -> list[Problem]:
    """The system messages and compaction blocks that are in the wrong place."""
    message = messages[index]
    problems: list[Problem] = []
    if _is_system(message):
        if not _follows_user(messages, index):
            text = "a system message after the assistant's"
            problems.append(Problem(index, text, rule="system-place"))
    elif message["role"] == "user" and index > head and _is_system(messages[index - 1]):
        text = "a system message before the user's"
        problems.append(Problem(index - 1, text, rule="system-place"))
    if "compaction" not in kinds:
        return problems
    for place, block in enumerate(blocks(message)):
        is_first = index == head and place == 0
        if is_first or kind(block) != "compaction":
            continue
        if is_replacement(block):
            text = "a signed compaction block that is not first"
            problems.append(Problem(index, text, place, "compaction"))
        elif opens_with_replacement(messages[head]):
            text = "a compaction block after a signed one"
            problems.append(Problem(index, text, place, "compaction"))
    return problems


def is_replacement(block: Block) -> bool:
    """Whether *block* is a compaction block that must come first and replace what it summarizes."""
    if kind(block) != "compaction":
        return False
    return bool(field(block, "content")) and bool(field(block, "signature"))


def opens_with_replacement(message: Message) -> bool:
    """Whether *message* begins with a signed compaction block, after which no other may come."""
    return any(map(is_replacement, blocks(message)[:1]))


def _is_system(message: Message) -> bool:
    return message["role"] == "system" and not is_directive(message)


def _follows_user(messages: Sequence[Message], index: int) -> bool:
    """Whether system message *index* comes after the user's, or after a server tool's result."""
    before = index - 1
    while messages[before]["role"] == "system":
        before -= 1
    return messages[before]["role"] == "user" or ends_in_server_result(messages[before])


def ends_in_server_result(message: Message) -> bool:
    """Whether the last block of *message* is the result of a tool that the server runs."""
    return any(is_server_result(kind(block)) for block in blocks(message)[-1:])


# Marks for the cache ------------------------------------------------------------------------------


class CacheMarks:
    """The cache_control marks of one conversation; a turn costs no more than its new messages."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums = array("I", [0])  # marks in the first n messages

    def rewind(self, known: int) -> None:
        """Forget all but the first *known* messages."""
        del self._sums[known + 1 :]

    def problems(
        self, messages: Sequence[Message], beside: MarksBeside = NO_MARKS
    ) -> list[Problem]:
        """Whether there are too many marks, *beside* included, or one for an hour too late."""
        most = marks_left(beside)
        if self._count(messages) > most:
            # Marks are often moved in place from turn to turn: only a fresh count is sure.
            self.rewind(0)
            if self._count(messages) > most:
                return [self._surplus_problem(messages, beside)]
        for index, (place, _) in late_hours(messages, self._messages_with_marks(), beside):
            text = "a cache mark for an hour after a shorter one"
            return [Problem(index, text, place, "cache-marks")]
        return []

    def _surplus_problem(self, messages: Sequence[Message], beside: MarksBeside) -> Problem:
        first = bisect_right(self._sums, 0) - 1
        text = f"the first of more than {MAX_CACHE_MARKS} cache_control marks"
        if beside.number:
            text += f", {beside.number} of them in the rest of the request"
        place, _ = next(cache_marks(messages[first]))
        return Problem(first, text, place, "cache-marks")

    def _messages_with_marks(self) -> Iterator[int]:
        """The indexes of the messages with marks, at the cost of these messages alone."""
        marks = 0
        while marks < self._sums[-1]:
            index = bisect_right(self._sums, marks) - 1
            yield index
            marks = self._sums[index + 1]

    def _count(self, messages: Sequence[Message]) -> int:
        for index in range(len(self._sums) - 1, len(messages)):
            self._sums.append(self._sums[-1] + sum(1 for _ in cache_marks(messages[index])))
        return self._sums[-1]


def marks_left(beside: MarksBeside) -> int:
    """How many cache marks the messages may have, with those *beside* them in the request."""
    return max(0, MAX_CACHE_MARKS - beside.number)


def is_for_hour(mark: object) -> bool:
    """Whether *mark*, a value of ``cache_control``, is for an hour instead of five minutes."""
    return bool(field(mark, "ttl") == "1h")


def cache_marks(message: Message) -> Iterator[tuple[int, int | None]]:
    """The block index of each cache mark, and the inner index where a tool result holds it."""
    for place, block in enumerate(blocks(message)):
        content = field(block, "content")  # of a tool result
        if isinstance(content, list | tuple):
            for inner, inner_block in enumerate(content):
                if field(inner_block, "cache_control"):
                    yield place, inner
        if field(block, "cache_control"):
            yield place, None


def late_hours(
    messages: Sequence[Message], marked: Iterable[int], beside: MarksBeside
) -> Iterator[tuple[int, tuple[int, int | None]]]:
    """The marks for an hour that come after a shorter one, in the messages at *marked*."""
    is_after_short = beside.begin_short
    for index in marked:
        content = blocks(messages[index])
        for place, inner in cache_marks(messages[index]):
            block = content[place]
            if inner is not None:
                block = field(block, "content")[inner]
            if not is_for_hour(field(block, "cache_control")):
                is_after_short = True
            elif is_after_short:
                yield index, (place, inner)
