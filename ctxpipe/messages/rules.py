"""The rules of the Messages API for a conversation, and the check of them.

Each rule rests on the API's reference, on its guides, or on the words of its refusals. Where these
are silent, nothing is refused: a block of an unknown kind passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple, TypeAlias

from ..errors import InvalidHistory
from .columns import Columns
from .facts import (
    NO_FACTS,
    Facts,
    is_directive,
    is_id,
    is_server_result,
    quote,
    read_facts,
)
from .vocabulary import (
    SERVER_CALLS,
    SERVER_RESULTS,
    Block,
    Message,
    blocks,
    field,
    head_length,
    inner_blocks,
    kind,
    program,
)

MAX_CACHE_MARKS = 4

MarkPlace: TypeAlias = tuple[int, int | None]
"""The index of a block with a cache mark, and the inner index where a tool result holds it."""


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
    columns: Columns | None = None,
    beside: MarksBeside = NO_MARKS,
) -> list[Problem]:
    """The rules of the Messages API that *messages* break, from message *start* on.

    A call at the end that still waits for its result is no problem. Without *encoding* neither are
    lone surrogates (the stages store them as they are). *columns* hold the facts of messages that
    are known, and take those of the others; without them all messages are read. *beside* are the
    marks in the rest of the request.
    """
    head = head_length(messages)
    problems: list[Problem] = []
    if start <= head < len(messages) and not may_open(messages[head]):
        problems.append(Problem(head, "the first message is not the user's", rule="first-message"))
    if columns is None:
        columns = Columns()
    facts = columns.read(messages, start)
    before = NO_FACTS
    if start and facts and (facts[0].results or messages[start - 1]["role"] == "system"):
        before = read_facts(messages[start - 1])
    walk = _Walk(messages, head)
    for index, own in enumerate(facts, start):
        for fault in own.faults:
            # The head stays as it is, as long as it can be sent at all.
            if encoding if fault.is_value else index >= head:
                problems += [Problem(index, fault.text, fault.block, fault.rule)]
        if index >= head:
            after = facts[index - start + 1] if index + 1 < len(messages) else None
            problems += _problems_of_place(walk, index, before, own, after)
        before = own
    return problems + mark_problems(messages, columns, beside)


def ensure_sendable_values(problems: Iterable[Problem]) -> None:
    """Raise InvalidHistory for a value that no client can send, such as one nested too deeply.

    *problems* are those that `check` has found. Other problems can be repaired.
    """
    for problem in problems:
        if problem.rule == "value":
            raise InvalidHistory(str(problem))


def _problems_of_place(
    walk: _Walk, index: int, before: Facts, own: Facts, after: Facts | None
) -> list[Problem]:
    """The rules that message *index* breaks among its neighbors; *walk* has come that far."""
    messages = walk.messages
    problems: list[Problem] = []
    if own.calls or own.results:
        problems += pair_problems(messages, index, before, own, after)
    if own.role == "user" and len(own.results) < len(own.kinds):  # it says more than results
        problems += _calls_without_result(walk, index)
        problems += _waiting_program_calls(walk, index)
    elif own.has_server_tools and own.role != "user":
        problems += walk.server_calls(index + 1).problems_of(index)
    if "system" in (own.role, before.role):
        problems += _system_problems(walk, index)
    if "compaction" in own.kinds:
        problems += _compaction_problems(messages, index, walk.head)
    return problems


class _Walk:
    """What a check remembers on its way through *messages*, of which the first *head* are system.

    A message is judged by others that may be far before it. Each message is looked at once for
    that, however many are judged by it: a history may have thousands of messages of one role in a
    row.
    """

    def __init__(self, messages: Sequence[Message], head: int) -> None:
        self.messages = messages
        self.head = head
        self.answered: set[int] = set()
        """The replies after which the user was seen to say more than results."""
        self._server_calls: _ServerCalls | None = None
        self._last: dict[bool, tuple[int, int]] = {}

    def last_reply(self, index: int) -> int:
        """The newest assistant message before message *index*, -1 without one."""
        return self._last_match(index, is_reply=True)

    def last_speaker(self, index: int) -> int:
        """The newest message before message *index* that is no system message, -1 without one."""
        return self._last_match(index, is_reply=False)

    def _last_match(self, index: int, *, is_reply: bool) -> int:
        stop, found = self._last.get(is_reply, (0, -1))
        for place in range(index - 1, stop - 1, -1):
            role = self.messages[place]["role"]
            if role == "assistant" or (role != "system" and not is_reply):
                found = place
                break
        self._last[is_reply] = (index, found)
        return found

    def server_calls(self, stop: int) -> _ServerCalls:
        """The server tools' calls in the turn that has come up to message *stop*."""
        if self._server_calls is None:
            start = stop
            while start > self.head and not closes_turn(self.messages[start - 1]):
                start -= 1
            self._server_calls = _ServerCalls(start)
        self._server_calls.read(self.messages, stop)
        return self._server_calls


def may_open(message: Message) -> bool:
    """Whether a conversation may begin with *message*."""
    if message["role"] == "user":
        return True
    content = blocks(message)
    return bool(content) and kind(content[0]) == "compaction"


# Calls and results --------------------------------------------------------------------------------


def pair_problems(
    messages: Sequence[Message], index: int, before: Facts, own: Facts, after: Facts | None
) -> list[Problem]:
    """The calls and results of message *index* that have no counterpart.

    *own* are its facts, *before* and *after* those of its neighbors.
    """
    problems: list[Problem] = []
    calls = own.calls
    message = messages[index]
    if calls and after is not None:
        if len(set(calls)) < len(calls):
            text = "the id {} for more than one tool_use"
            repeated = _surplus(calls, list(set(calls)))
            problems += _id_problems(message, index, "tool_use", repeated, "repeated-id", text)
        if calls != after.results:
            text = "the tool_use {} has no tool_result in the next message"
            unanswered = _surplus(calls, after.results)
            problems += _id_problems(message, index, "tool_use", unanswered, "tool-pair", text)
    if own.results and own.results != before.calls:
        text = "the tool_result {} has no tool_use in the message before"
        orphans = _surplus(own.results, before.calls)
        problems += _id_problems(message, index, "tool_result", orphans, "tool-pair", text)
    return problems


def _surplus(ours: Sequence[str], theirs: Sequence[str]) -> Iterable[str]:
    """The ids that are in *ours* more often than in *theirs*."""
    return Counter(ours) - Counter(theirs)


_ID_KEYS = {"tool_use": "id", "tool_result": "tool_use_id"}


def _id_problems(
    message: Message, index: int, block_kind: str, ids: Iterable[str], rule: str, text: str
) -> Iterator[Problem]:
    """A problem for each of *ids*, at the last block of that kind that has it."""
    key = _ID_KEYS[block_kind]
    last_places: dict[str, int] = {}
    for place, block in enumerate(blocks(message)):
        if kind(block) == block_kind:
            last_places[str(field(block, key, ""))] = place
    for name in ids:
        yield Problem(index, text.format(quote(name)), last_places.get(name), rule)


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
    return str(field(block, "id", "")) if kind(block) in SERVER_CALLS else None


def server_result(block: Block) -> str | None:
    """The id of the call that *block* answers if it is a server tool's result."""
    return str(field(block, "tool_use_id", "")) if is_server_result(kind(block)) else None


class _ServerCalls:
    """The calls of server tools in a turn, as far as it was read.

    *pending* are the places of those without a result yet, by id. What is wrong with a message is
    a result or a caller that has no call before it in its turn.
    """

    def __init__(self, start: int) -> None:
        self.pending: dict[str, list[tuple[int, int]]] = {}
        self._next = start  # the message that is read next
        self._problems: dict[int, list[Problem]] = {}

    def problems_of(self, index: int) -> list[Problem]:
        """The problems of message *index*, which was read."""
        return self._problems.get(index, [])

    def read(self, messages: Sequence[Message], stop: int) -> None:
        """Read on to message *stop*."""
        for index in range(self._next, stop):
            if closes_turn(messages[index]):
                self.pending = {}
            elif messages[index]["role"] == "assistant":
                for place, block in enumerate(blocks(messages[index])):
                    self._read_block(index, place, block)
        self._next = max(self._next, stop)

    def _read_block(self, index: int, place: int, block: Block) -> None:
        call, result, caller = server_call(block), server_result(block), program(block)
        # Of a kind that is known, or with the id of a server tool's call.
        is_sure = kind(block) in SERVER_RESULTS or is_id(result, "server_tool_use")
        if call is not None:
            self.pending.setdefault(call, []).append((index, place))
        if result is not None and self.pending.get(result):
            self.pending[result].pop()
        elif result is not None and is_sure:
            text = f"the {kind(block)} {quote(result)} has no call before it in its turn"
            self._add_problem(index, place, text)
        if caller is not None and caller not in self.pending:
            self._add_problem(index, place, f"the call's caller {quote(caller)} is not in its turn")

    def _add_problem(self, index: int, place: int, text: str) -> None:
        self._problems.setdefault(index, []).append(Problem(index, text, place, "server-tool"))


def _calls_without_result(walk: _Walk, index: int) -> list[Problem]:
    """The server tools' calls without a result in the turn that ends before message *index*."""
    problems: list[Problem] = []
    for call, places in walk.server_calls(index).pending.items():
        for at, place in places:
            name = kind(blocks(walk.messages[at])[place])
            text = f"the {name} {quote(call)} has no result in its turn"
            problems.append(Problem(at, text, place, "server-tool"))
    return sorted(problems, key=attrgetter("index", "block"))


def _waiting_program_calls(walk: _Walk, index: int) -> Iterator[Problem]:
    """The calls of programs that message *index* should answer, but which says more."""
    before = walk.last_reply(index)
    if before < 0 or before in walk.answered:
        return
    walk.answered.add(before)
    for place, block in enumerate(blocks(walk.messages[before])):
        if kind(block) == "tool_use" and program(block) is not None:
            text = "the user says more than the results that the call's program waits for"
            yield Problem(before, text, place, "server-tool")


# Places -------------------------------------------------------------------------------------------


def _system_problems(walk: _Walk, index: int) -> list[Problem]:
    """The system message in the wrong place that message *index* is, or shows to be one."""
    messages = walk.messages
    if _is_system(messages[index]):
        if not _follows_user(messages[walk.last_speaker(index)]):
            text = "a system message after the assistant's"
            return [Problem(index, text, rule="system-place")]
    elif (
        messages[index]["role"] == "user" and index > walk.head and _is_system(messages[index - 1])
    ):
        text = "a system message before the user's"
        return [Problem(index - 1, text, rule="system-place")]
    return []


def _compaction_problems(messages: Sequence[Message], index: int, head: int) -> list[Problem]:
    """The compaction blocks of message *index* that are in the wrong place."""
    problems: list[Problem] = []
    for place, block in enumerate(blocks(messages[index])):
        is_first = index == head and place == 0
        if is_first or kind(block) != "compaction":
            continue
        if is_replacement(block):
            text = "a signed compaction block that is not first"
            problems.append(Problem(index, text, place, "compaction"))
        elif any(map(is_replacement, blocks(messages[head])[:1])):
            text = "a compaction block after a signed one"
            problems.append(Problem(index, text, place, "compaction"))
    return problems


def is_replacement(block: Block) -> bool:
    """Whether *block* is a compaction block that must come first and replace what it summarizes."""
    is_summary = kind(block) == "compaction" and bool(field(block, "content"))
    return is_summary and bool(field(block, "signature"))


def _is_system(message: Message) -> bool:
    return message["role"] == "system" and not is_directive(message)


def _follows_user(before: Message) -> bool:
    """Return True if a system message may follow *before*.

    That is a message of the user, or one that ends with the result of a server tool.
    """
    last = blocks(before)[-1:]
    return before["role"] == "user" or any(is_server_result(kind(block)) for block in last)


# Marks for the cache ------------------------------------------------------------------------------


def mark_problems(
    messages: Sequence[Message], columns: Columns, beside: MarksBeside = NO_MARKS
) -> list[Problem]:
    """Whether *messages*, of these *columns*, have too many marks, or one for an hour too late."""
    if not columns.marks:
        return []
    most = marks_left(beside)
    if columns.marks > most:
        # Marks are often moved in place from turn to turn: only a fresh count is sure.
        columns.cut(0)
        columns.extend(messages)
        if columns.marks > most:
            return [_surplus_problem(messages, columns, beside)]
    for index, (place, _) in late_hours(messages, columns.messages_with_marks(), beside):
        text = "a cache mark for an hour after a shorter one"
        return [Problem(index, text, place, "cache-marks")]
    return []


def _surplus_problem(messages: Sequence[Message], columns: Columns, beside: MarksBeside) -> Problem:
    first = next(columns.messages_with_marks())
    text = f"the first of more than {MAX_CACHE_MARKS} cache_control marks"
    if beside.number:
        text += f", {beside.number} of them in the rest of the request"
    (place, _), _ = next(cache_marks(messages[first]))
    return Problem(first, text, place, "cache-marks")


def marks_left(beside: MarksBeside) -> int:
    """How many cache marks the messages may have, with those *beside* them in the request."""
    return max(0, MAX_CACHE_MARKS - beside.number)


def is_for_hour(mark: object) -> bool:
    """Whether *mark*, a value of ``cache_control``, is for an hour instead of five minutes."""
    return bool(field(mark, "ttl") == "1h")


def cache_marks(message: Message) -> Iterator[tuple[MarkPlace, object]]:
    """The cache marks of *message*, and where each is."""
    for place, block in enumerate(blocks(message)):
        for inner, inner_block in enumerate(inner_blocks(block)):
            if mark := field(inner_block, "cache_control"):
                yield (place, inner), mark
        if mark := field(block, "cache_control"):
            yield (place, None), mark


def late_hours(
    messages: Sequence[Message], marked: Iterable[int], beside: MarksBeside
) -> Iterator[tuple[int, MarkPlace]]:
    """The marks for an hour that come after a shorter one, in the messages at *marked*."""
    is_after_short = beside.begin_short
    for index in marked:
        for place, mark in cache_marks(messages[index]):
            if not is_for_hour(mark):
                is_after_short = True
            elif is_after_short:
                yield index, place
