"""The rules of the Messages API for a conversation, and a check of them.

Each rule is based on the API's reference, its guides, or the texts of its refusals. Anything that
these do not mention is accepted, such as a block of an unknown kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, cast

from ..errors import InvalidHistory
from .fact_sums import FactSums
from .facts import (
    NO_FACTS,
    MessageFacts,
    id_repr,
    is_directive,
    is_id,
    is_server_result,
    read_facts,
)
from .vocabulary import (
    SERVER_CALLS,
    SERVER_RESULTS,
    Block,
    Message,
    MessageLike,
    blocks,
    field,
    head_length,
    inner_blocks,
    kind,
    program,
)

MAX_CACHE_MARKS = 4

MarkPlace: TypeAlias = tuple[int, int | None]
"""The index of a block with a cache mark, and the index inside that block, or None.

The second index is set if the mark is on a block inside a tool result.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of the Messages API.

    *says* is the rule in a sentence. *repair* says how a history that breaks it is repaired; it is
    empty if that is not possible: then the history is refused with InvalidHistory.
    """

    name: str
    says: str
    repair: str


RULES = (
    Rule(
        "empty",
        "A message has content, and no text block is blank.",
        "The block is removed, or the message.",
    ),
    Rule(
        "first-message",
        "The first message is the user's, or begins with a compaction block.",
        "A line of the user is added before it.",
    ),
    Rule(
        "message-key",
        "A message has `role` and `content`, and no other key.",
        "The other keys are removed.",
    ),
    Rule(
        "block-type",
        "Each block has a type.",
        "A block with a text becomes a text block; any other is removed.",
    ),
    Rule(
        "block-key",
        "The caller of a call is an object; a compaction block has only its own keys.",
        "The key is removed.",
    ),
    Rule(
        "speaker",
        "Only the assistant calls tools and thinks; only the user answers calls.",
        "The block is removed.",
    ),
    Rule(
        "results-first",
        "Tool results come before the other blocks of their message.",
        "They move to the front.",
    ),
    Rule(
        "thinking",
        "Thinking is signed, has no cache mark, and is not the end of its message.",
        "The thinking is removed, or its mark.",
    ),
    Rule(
        "tool-id",
        "Ids of calls have the form that the API gives them.",
        "The call and its result get the same new id.",
    ),
    Rule(
        "repeated-id",
        "The calls of one message have different ids.",
        "The later call gets a new id.",
    ),
    Rule(
        "tool-name",
        "The name of a call's tool has 1 to 200 characters.",
        "The name becomes `unknown_tool`, or is shortened.",
    ),
    Rule(
        "tool-input",
        "The input of a call is an object.",
        "JSON text is parsed; any other value is put under the key `input`.",
    ),
    Rule(
        "tool-pair",
        "The next message answers each call exactly once.",
        "A missing result is added, and says so; a result without a call is removed.",
    ),
    Rule(
        "error-result",
        "A result that is an error has text, and nothing else.",
        "A text is added; a result with other blocks is no error any more.",
    ),
    Rule(
        "server-tool",
        "The call and the result of a server tool are in one turn.",
        "The call or result without the other is removed.",
    ),
    Rule(
        "system-place",
        "A later system message comes after a user message, before the reply.",
        "It moves there.",
    ),
    Rule(
        "compaction",
        "A compaction block is not empty; a signed one comes first.",
        "It is removed, or the messages that it summarizes.",
    ),
    Rule(
        "cache-marks",
        "A request has at most four cache marks, those for an hour first.",
        "The last four stay; a late mark for an hour is shortened.",
    ),
    Rule("surrogate", "Every text can be sent as UTF-8.", "Lone surrogates become U+FFFD."),
    Rule("value", "The client library can encode every value.", ""),
)
"""The rules that `check` checks."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A broken rule of the Messages API, in the message at *index*.

    *text* describes the fault. *block* is the index of the block at fault; None if the message as a
    whole is at fault. *rule* is the name of the rule, such as "empty"; the tuple
    ``ctxpipe.messages.RULES`` has a `Rule` for each.
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


class OtherMarks(NamedTuple):
    """The cache marks (`cache_control`) of a request that are outside its messages.

    *mark_count* is the number of marks in the tools and the system prompt. *has_short* is True if a
    mark in the tools or the system prompt is for less than an hour: then no mark in the messages
    may be for an hour.
    """

    mark_count: int = 0
    has_short: bool = False


NO_OTHER_MARKS = OtherMarks()


def check(
    messages: Sequence[MessageLike],
    start: int = 0,
    *,
    encoding: bool = True,
    fact_sums: FactSums | None = None,
    other_marks: OtherMarks = NO_OTHER_MARKS,
) -> list[Problem]:
    """Return a `Problem` for each rule of the Messages API that is broken, from message *start* on.

    The list is empty if *messages* are valid; no error is raised. A call at the end that still
    waits for its result is no problem. If *encoding* is False, lone surrogates (halves of a
    character that cannot be sent as UTF-8) are not reported.

    *other_marks* describes the cache marks (``cache_control``) in the system prompt and the tools,
    which count against the same limit of four; by default there are none.

    *fact_sums* saves time if a growing history is checked again and again: create one
    ``FactSums()`` for the history, and pass it to each call. It has counts of the messages that
    earlier calls have read, and each call adds those of the new messages. It must have been passed
    to a call for all messages before *start*. Without *fact_sums* all messages are read.
    """
    messages = cast("list[Message]", messages)
    head = head_length(messages)
    problems: list[Problem] = []
    if start <= head < len(messages) and not can_come_first(messages[head]):
        text = "the first message is not the user's"
        problems.append(Problem(head, text, rule="first-message"))
    if fact_sums is None:
        fact_sums = FactSums()
    facts = fact_sums.read(messages, start)
    before = NO_FACTS
    if start and facts and (facts[0].results or messages[start - 1]["role"] == "system"):
        before = read_facts(messages[start - 1])
    progress = _CheckProgress(messages, head)
    for index, own in enumerate(facts, start):
        for fault in own.faults:
            # System messages of the head need not follow the rules, only be encodable.
            is_problem = encoding if fault.is_value else index >= head
            if is_problem:
                problems.append(Problem(index, fault.text, fault.block, fault.rule))
        if index >= head:
            after = facts[index - start + 1] if index + 1 < len(messages) else None
            problems += _problems_of_place(progress, index, before, own, after)
        before = own
    return problems + mark_problems(messages, fact_sums, other_marks)


def ensure_sendable_values(problems: Iterable[Problem]) -> None:
    """Raise InvalidHistory for a value that no client can send, such as one nested too deeply.

    *problems* are those that `check` has returned. Other problems can be repaired.
    """
    for problem in problems:
        if problem.rule == "value":
            raise InvalidHistory(str(problem))


def _problems_of_place(
    progress: _CheckProgress,
    index: int,
    before: MessageFacts,
    own: MessageFacts,
    after: MessageFacts | None,
) -> list[Problem]:
    """Return the rules that message *index* breaks together with the messages around it.

    *before*, *own* and *after* are the facts of the previous message, the message itself, and the
    next one; *after* is None at the end. The messages before it were checked with *progress*.
    """
    messages = progress.messages
    problems: list[Problem] = []
    if own.calls or own.results:
        problems += pair_problems(messages, index, before, own, after)
    if own.role == "user" and len(own.results) < len(own.kinds):  # it has more than results
        problems += _calls_without_result(progress, index)
        problems += _waiting_program_calls(progress, index)
    elif own.has_server_tools and own.role != "user":
        problems += progress.server_calls(index + 1).problems_of(index)
    if "system" in (own.role, before.role):
        problems += _system_problems(progress, index)
    if "compaction" in own.kinds:
        problems += _compaction_problems(messages, index, progress.head)
    return problems


class _CheckProgress:
    """Facts that a check remembers while it goes through *messages*, from the first to the last.

    The first *head* messages are system messages.

    Whether a message breaks a rule may depend on a message far before it, such as the last one of
    the assistant. A history may have thousands of messages of one role in a row, so a search
    backwards for each of them would take quadratic time. Here each search ends where the previous
    search began.
    """

    def __init__(self, messages: Sequence[Message], head: int) -> None:
        self.messages = messages
        self.head = head
        self.answered: set[int] = set()
        """Indices of the replies after which the user has said more than results."""
        self._server_calls: _ServerCalls | None = None
        # By is_reply: where the last search began, and its result.
        self._last: dict[bool, tuple[int, int]] = {}

    def last_reply(self, index: int) -> int:
        """Return the index of the last assistant message before message *index*; -1 if none."""
        return self._last_match(index, is_reply=True)

    def last_speaker(self, index: int) -> int:
        """Return the index of the last message before *index* that is no system message, or -1."""
        return self._last_match(index, is_reply=False)

    def _last_match(self, index: int, *, is_reply: bool) -> int:
        """Return the index of the last message before *index* with the wanted role, -1 if none.

        That is a reply of the model; without *is_reply*, a reply or a message of the user.
        """
        stop, match = self._last.get(is_reply, (0, -1))
        for place in range(index - 1, stop - 1, -1):
            role = self.messages[place]["role"]
            if role == "assistant" or (role != "system" and not is_reply):
                match = place
                break
        self._last[is_reply] = (index, match)
        return match

    def server_calls(self, stop: int) -> _ServerCalls:
        """Return the server tools' calls in the turn of message *stop*, read up to that message."""
        if self._server_calls is None:
            start = stop
            while start > self.head and not closes_turn(self.messages[start - 1]):
                start -= 1
            self._server_calls = _ServerCalls(start)
        self._server_calls.read(self.messages, stop)
        return self._server_calls


def can_come_first(message: Message) -> bool:
    """Return True if *message* can be the first after the system messages."""
    if message["role"] == "user":
        return True
    content = blocks(message)
    return bool(content) and kind(content[0]) == "compaction"


# Calls and results --------------------------------------------------------------------------------


def pair_problems(
    messages: Sequence[Message],
    index: int,
    before: MessageFacts,
    own: MessageFacts,
    after: MessageFacts | None,
) -> list[Problem]:
    """Return the calls and results of message *index* that have no counterpart.

    *before*, *own* and *after* are the facts of the previous message, the message itself, and the
    next one; *after* is None at the end.
    """
    problems: list[Problem] = []
    calls = own.calls
    message = messages[index]
    if calls and after is not None:
        if len(set(calls)) < len(calls):
            text = "the id {} for more than one tool_use"
            repeated_ids = _surplus(calls, list(set(calls)))
            problems += _id_problems(message, index, "tool_use", repeated_ids, "repeated-id", text)
        if calls != after.results:
            text = "the tool_use {} has no tool_result in the next message"
            unanswered_ids = _surplus(calls, after.results)
            problems += _id_problems(message, index, "tool_use", unanswered_ids, "tool-pair", text)
    if own.results and own.results != before.calls:
        text = "the tool_result {} has no tool_use in the message before"
        orphan_ids = _surplus(own.results, before.calls)
        problems += _id_problems(message, index, "tool_result", orphan_ids, "tool-pair", text)
    return problems


def _surplus(ids: Sequence[str], other_ids: Sequence[str]) -> Iterable[str]:
    """Return the ids that are in *ids* more often than in *other_ids*."""
    return Counter(ids) - Counter(other_ids)


_ID_KEYS = {"tool_use": "id", "tool_result": "tool_use_id"}


def _id_problems(
    message: Message, index: int, block_kind: str, ids: Iterable[str], rule: str, text: str
) -> Iterator[Problem]:
    """Yield a problem for each of *ids*, at the last block of *block_kind* that has the id.

    *text* has a placeholder for the id.
    """
    key = _ID_KEYS[block_kind]
    last_places: dict[str, int] = {}
    for place, block in enumerate(blocks(message)):
        if kind(block) == block_kind:
            last_places[str(field(block, key, ""))] = place
    for call_id in ids:
        yield Problem(index, text.format(id_repr(call_id)), last_places.get(call_id), rule)


# Server tools -------------------------------------------------------------------------------------
#
# The call of a server tool and its result are blocks of one turn of the assistant, maybe of several
# messages of it. Messages of the user with nothing but results of other calls do not end the turn.


def closes_turn(message: Message) -> bool:
    """Return True if *message* ends the assistant's turn: the user says more than results."""
    if message["role"] != "user":
        return False
    content = message["content"]
    if isinstance(content, str):
        return bool(content)
    return any(kind(block) != "tool_result" for block in blocks(message))


def server_call(block: Block) -> str | None:
    """Return the id of *block* if it is a server tool's call, else None."""
    if kind(block) not in SERVER_CALLS:
        return None
    return str(field(block, "id", ""))


def server_result(block: Block) -> str | None:
    """Return the id of the call that *block* answers if it is a server tool's result, else None."""
    if not is_server_result(kind(block)):
        return None
    return str(field(block, "tool_use_id", ""))


class _ServerCalls:
    """The calls of server tools in a turn, up to the message that was read last.

    *pending* has the places of the calls without a result so far, by id. A problem of a message is
    a result or a caller that has no call before it in its turn.
    """

    def __init__(self, start: int) -> None:
        self.pending: dict[str, list[tuple[int, int]]] = {}
        self._next = start  # the message that is read next
        self._problems: dict[int, list[Problem]] = {}

    def problems_of(self, index: int) -> list[Problem]:
        """Return the problems of message *index*, which was read."""
        return self._problems.get(index, [])

    def read(self, messages: Sequence[Message], stop: int) -> None:
        """Read the messages before index *stop* that were not read yet, and record their problems.

        A message that ends a turn ends all pending calls.
        """
        for index in range(self._next, stop):
            if closes_turn(messages[index]):
                self.pending = {}
            elif messages[index]["role"] == "assistant":
                for place, block in enumerate(blocks(messages[index])):
                    self._read_block(index, place, block)
        self._next = max(self._next, stop)

    def _read_block(self, index: int, place: int, block: Block) -> None:
        """Record the server tool's call or result in *block*, and add its problems.

        *index* and *place* are the indices of the message and of the block. Problems are a result
        without its call, and a caller without its call, in the same turn.
        """
        call = server_call(block)
        result = server_result(block)
        caller = program(block)
        # A result of an unknown kind counts only if it has the id of a server tool's call.
        is_sure = kind(block) in SERVER_RESULTS or is_id(result, "server_tool_use")
        if call is not None:
            self.pending.setdefault(call, []).append((index, place))
        if result is not None and self.pending.get(result):
            self.pending[result].pop()
        elif result is not None and is_sure:
            text = f"the {kind(block)} {id_repr(result)} has no call before it in its turn"
            self._add_problem(index, place, text)
        if caller is not None and caller not in self.pending:
            text = f"the call's caller {id_repr(caller)} is not in its turn"
            self._add_problem(index, place, text)

    def _add_problem(self, index: int, place: int, text: str) -> None:
        self._problems.setdefault(index, []).append(Problem(index, text, place, "server-tool"))


def _calls_without_result(progress: _CheckProgress, index: int) -> list[Problem]:
    """Return the server tools' calls without a result in the turn that ends before *index*."""
    places: list[tuple[int, int, str]] = []
    for call_id, call_places in progress.server_calls(index).pending.items():
        for message_index, place in call_places:
            places.append((message_index, place, call_id))
    problems: list[Problem] = []
    for message_index, place, call_id in sorted(places):
        name = kind(blocks(progress.messages[message_index])[place])
        text = f"the {name} {id_repr(call_id)} has no result in its turn"
        problems.append(Problem(message_index, text, place, "server-tool"))
    return problems


def _waiting_program_calls(progress: _CheckProgress, index: int) -> Iterator[Problem]:
    """Yield the calls of programs before message *index*, if that has more than their results.

    A program that a server tool runs waits for the results of its calls. The API then accepts
    nothing but results.
    """
    before = progress.last_reply(index)
    if before < 0 or before in progress.answered:
        return
    progress.answered.add(before)
    for place, block in enumerate(blocks(progress.messages[before])):
        if kind(block) == "tool_use" and program(block) is not None:
            text = "the user says more than the results that the call's program waits for"
            yield Problem(before, text, place, "server-tool")


# Places -------------------------------------------------------------------------------------------


def _system_problems(progress: _CheckProgress, index: int) -> list[Problem]:
    """Return the problem of a system message at *index*, or just before it, in the wrong place."""
    messages = progress.messages
    if _is_system(messages[index]):
        if _can_precede_system(messages[progress.last_speaker(index)]):
            return []
        return [Problem(index, "a system message after the assistant's", rule="system-place")]
    is_before_user = (
        messages[index]["role"] == "user"
        and index > progress.head
        and _is_system(messages[index - 1])
    )
    if not is_before_user:
        return []
    return [Problem(index - 1, "a system message before the user's", rule="system-place")]


def _compaction_problems(messages: Sequence[Message], index: int, head: int) -> list[Problem]:
    """Return the problems of compaction blocks of message *index* in the wrong place."""
    is_after_signed = any(is_replacement(block) for block in blocks(messages[head])[:1])
    problems: list[Problem] = []
    for place, block in enumerate(blocks(messages[index])):
        is_first = index == head and place == 0
        if is_first or kind(block) != "compaction":
            continue
        if is_replacement(block):
            text = "a signed compaction block that is not first"
            problems.append(Problem(index, text, place, "compaction"))
        elif is_after_signed:
            text = "a compaction block after a signed one"
            problems.append(Problem(index, text, place, "compaction"))
    return problems


def is_replacement(block: Block) -> bool:
    """Return True if *block* is a signed compaction block.

    It must come first, in place of the messages that it summarizes.
    """
    is_summary = kind(block) == "compaction" and bool(field(block, "content"))
    return is_summary and bool(field(block, "signature"))


def _is_system(message: Message) -> bool:
    return message["role"] == "system" and not is_directive(message)


def _can_precede_system(message: Message) -> bool:
    """Return True if a system message can follow *message*.

    That is a message of the user, or one that ends with the result of a server tool.
    """
    last = blocks(message)[-1:]
    return message["role"] == "user" or any(is_server_result(kind(block)) for block in last)


# Cache marks --------------------------------------------------------------------------------------


def mark_problems(
    messages: Sequence[Message], fact_sums: FactSums, other_marks: OtherMarks = NO_OTHER_MARKS
) -> list[Problem]:
    """Return the problem of too many cache marks, or of a mark for an hour after a shorter one.

    *fact_sums* are those of *messages*.
    """
    if not fact_sums.marks:
        return []
    limit = available_marks(other_marks)
    if fact_sums.marks > limit:
        # Callers often move marks in place from turn to turn: only a new count is certain.
        fact_sums.rewind(0)
        fact_sums.extend(messages)
        if fact_sums.marks > limit:
            return [_surplus_problem(messages, fact_sums, other_marks)]
    for index, (place, _) in late_hour_marks(
        messages, fact_sums.messages_with_marks(), other_marks
    ):
        text = "a cache mark for an hour after a shorter one"
        return [Problem(index, text, place, "cache-marks")]
    return []


def _surplus_problem(
    messages: Sequence[Message], fact_sums: FactSums, other_marks: OtherMarks
) -> Problem:
    """Return the problem of a history with too many cache marks, at the first mark."""
    first = next(fact_sums.messages_with_marks())
    text = f"the first of more than {MAX_CACHE_MARKS} cache_control marks"
    if other_marks.mark_count:
        text += f", {other_marks.mark_count} of them in the rest of the request"
    (place, _), _ = next(cache_marks(messages[first]))
    return Problem(first, text, place, "cache-marks")


def available_marks(other_marks: OtherMarks) -> int:
    """Return how many cache marks the messages of a request with *other_marks* may have."""
    return max(0, MAX_CACHE_MARKS - other_marks.mark_count)


def is_for_hour(mark: object) -> bool:
    """Return True if *mark*, a value of ``cache_control``, is for an hour, not five minutes."""
    return bool(field(mark, "ttl") == "1h")


def cache_marks(message: Message) -> Iterator[tuple[MarkPlace, object]]:
    """Yield the place and the value of each cache mark of *message*."""
    for place, block in enumerate(blocks(message)):
        for inner, inner_block in enumerate(inner_blocks(block)):
            if mark := field(inner_block, "cache_control"):
                yield (place, inner), mark
        if mark := field(block, "cache_control"):
            yield (place, None), mark


def late_hour_marks(
    messages: Sequence[Message], indices: Iterable[int], other_marks: OtherMarks
) -> Iterator[tuple[int, MarkPlace]]:
    """Yield the marks for an hour that come after a shorter one, in the messages at *indices*."""
    is_after_short = other_marks.has_short
    for index in indices:
        for place, mark in cache_marks(messages[index]):
            if not is_for_hour(mark):
                is_after_short = True
            elif is_after_short:
                yield index, place
