"""Repair how calls and results belong together: in turns of the assistant, and in exchanges.

An *exchange* is a run of assistant messages with everything up to the next one. In this example,
call ``b`` has no result, and there is a result for a call ``x`` that does not exist:

    assistant  call a                  assistant  call a, call b
    assistant  call b            →     user       result of a, "interrupted" (error) for b,
    user       result of a                        "Go on"
    user       result of x, "Go on"

A valid exchange keeps its very objects; only a broken one is built again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ..messages import (
    Block,
    Message,
    as_blocks,
    as_dict,
    blocks,
    check,
    field,
    has_calls,
    has_thinking,
    kind,
    program,
    rewrite,
    tool_calls,
    with_content,
)
from ..messages.facts import is_directive
from ..messages.rules import server_result
from ..messages.vocabulary import with_blocks, without_key
from ..placeholders.placeholders import DROPPED, INTERRUPTED
from .repair_blocks import without_kind

# A single exchange cannot be judged by these rules, or they are repaired in another step.
_RULES_FOR_WHOLE_HISTORY = frozenset({"first-message", "server-tool", "compaction", "cache-marks"})


# Server tools -------------------------------------------------------------------------------------


def complete_turns(body: list[Message]) -> list[Message]:
    """Return *body* without calls and results of server tools that miss their other half.

    Both halves must be in the same turn. If a program called the tool and the program is missing,
    the call becomes the model's own, and so does its result.
    """
    problems = [problem for problem in check(body) if problem.rule == "server-tool"]
    if not problems:
        return body
    broken_places = {(problem.index, problem.block) for problem in problems}
    orphan_ids: set[str] = set()
    completed: list[Message] = []
    for index, message in enumerate(body):
        content: list[Block] = []
        for place, block in enumerate(blocks(message)):
            if (index, place) in broken_places:
                if program(block) is None:
                    continue
                orphan_ids.add(str(field(block, "id")))
                content.append(without_key(block, "caller"))
            elif server_result(block) in orphan_ids:
                content.append(without_key(block, "caller"))
            else:
                content.append(block)
        completed.append(with_blocks(message, content))
    # A removed block may have been the other half, or the program, of another one.
    return complete_turns(completed)


# Exchanges ----------------------------------------------------------------------------------------


def exchanges_of(body: Sequence[Message]) -> Iterator[list[Message]]:
    """Yield runs of messages: the assistant's first, then the replies to them.

    Only the first run may begin with a message of the user. An assistant message without content
    begins no run.
    """
    exchange: list[Message] = []
    has_reply = False
    for message in body:
        if message["role"] != "assistant":
            has_reply = True
        elif message["content"] and has_reply:
            yield exchange
            exchange = []
            has_reply = False
        exchange.append(message)
    if exchange:
        yield exchange


def _with_role(messages: Sequence[Message], role: str) -> list[Message]:
    return [message for message in messages if message["role"] == role]


def _replies(exchange: Sequence[Message]) -> list[Message]:
    """Return the messages of the user and the system in *exchange*."""
    return [message for message in exchange if message["role"] != "assistant"]


def repair_exchange(exchange: list[Message], *, is_last: bool) -> list[Message]:
    """Return *exchange* if it is valid, otherwise a valid one: calls, results, other words.

    *is_last* is True for the last exchange of the history.
    """
    problems = check(exchange, encoding=False)
    if all(problem.rule in _RULES_FOR_WHOLE_HISTORY for problem in problems):
        return exchange
    replies = _replies(exchange)
    other_words: list[Message] = []
    for reply in replies:
        message = without_kind(reply, "tool_result")
        if message["content"] or is_directive(message):
            other_words.append(message)
    user_words = _with_role(other_words, "user")
    repaired = _join_neighbors([*_repair_calls(exchange, replies), *user_words])
    # System messages come after the user's.
    system_messages = _with_role(other_words, "system")
    has_lost_reply = is_last and bool(_with_role(replies, "user"))
    all_directives = all(is_directive(message) for message in system_messages)
    needs_user = has_lost_reply or not all_directives
    ends_without_user = not repaired or repaired[-1]["role"] == "assistant"
    if needs_user and ends_without_user:
        repaired.append({"role": "user", "content": DROPPED})
    return [*repaired, *system_messages]


def _repair_calls(exchange: Sequence[Message], replies: Sequence[Message]) -> list[Message]:
    """Return the assistant's messages of *exchange*, each followed by a result for each call.

    Neighbouring replies are joined, calls with one id get distinct ids, and a call without a result
    gets a failed one. The results come from *replies*, the messages of the user after them. The
    calls at the end of a history may still wait: without *replies* they get no result.
    """
    assistant_messages = _with_role(exchange, "assistant")
    turns = _join_neighbors([message for message in assistant_messages if message["content"]])
    results = _results(replies)
    # Only the last exchange of a history has no replies: its last calls may still wait for their
    # results.
    waiting = None
    if not replies and has_calls(exchange[-1]):
        waiting = turns[-1]
    repaired: list[Message] = []
    for turn in turns:
        id_by_place = {call.place: call.id for call in tool_calls([turn])}
        call_ids = list(id_by_place.values())
        unique_ids = _unique_ids(call_ids)
        if unique_ids == call_ids:
            repaired.append(turn)
        else:
            new_ids = dict(zip(id_by_place, unique_ids, strict=True))
            repaired += rewrite([turn], new_ids, key="id")
        if call_ids and turn is not waiting:
            last_place = {call_id: place for place, call_id in enumerate(call_ids)}
            answers: list[Any] = []
            for place, call_id in enumerate(call_ids):
                is_last = last_place[call_id] == place
                answers.append(
                    _take_result(results.get(call_id), unique_ids[place], is_last=is_last)
                )
            repaired.append({"role": "user", "content": answers})
    return repaired


def _join_neighbors(messages: Iterable[Message]) -> list[Message]:
    """Return *messages* with neighbors of one role joined, unless one of them has thinking."""
    runs: list[list[Message]] = []
    previous_has_thinking = False
    for message in messages:
        message_has_thinking = has_thinking(message)
        is_same = runs and runs[-1][0]["role"] == message["role"]
        if is_same and not (previous_has_thinking or message_has_thinking):
            runs[-1].append(message)
        else:
            runs.append([message])
        previous_has_thinking = message_has_thinking
    return [_join(run) for run in runs]


def _join(run: Sequence[Message]) -> Message:
    """Return the messages of *run* as one message; the same object if it is a single one."""
    if len(run) == 1:
        return run[0]
    return with_content(run[0], [block for message in run for block in as_blocks(message)])


def _results(messages: Iterable[Message]) -> dict[str, deque[Block]]:
    """Return the tool_result blocks in *messages* by the id of their call, in their order.

    Several results of one call are all there.
    """
    results: dict[str, deque[Block]] = {}
    for message in messages:
        for block in blocks(message):
            if kind(block) == "tool_result":
                call_id = str(field(block, "tool_use_id", ""))
                results.setdefault(call_id, deque()).append(block)
    return results


def _take_result(results: deque[Block] | None, call_id: str, *, is_last: bool) -> Any:
    """Remove one of *results* and return it as the result of the call *call_id*.

    Several calls may have had the same id: the last one, *is_last*, gets the first failed result.
    Without a result the call is reported as interrupted.
    """
    if not results:
        return interrupted_result(call_id)
    place = 0
    if is_last:
        for index, result in enumerate(results):
            if field(result, "is_error"):
                place = index
                break
    result = results[place]
    del results[place]
    if str(field(result, "tool_use_id", "")) == call_id:
        return result
    return {**as_dict(result), "tool_use_id": call_id}


def interrupted_result(call_id: str) -> dict[str, object]:
    """Return the failed result for a call that never got one."""
    return {
        "type": "tool_result",
        "tool_use_id": call_id,
        "content": INTERRUPTED,
        "is_error": True,
    }


def _unique_ids(call_ids: Sequence[str]) -> list[str]:
    """Return *call_ids* with a number added to each that occurred before.

    The API wants them unique: ``a, a, b`` becomes ``a, a-2, b``.
    """
    unique_ids: list[str] = []
    all_ids = set(call_ids)
    used_ids: set[str] = set()
    last_numbers: dict[str, int] = {}  # the last number added to each id
    for call_id in call_ids:
        unique_id = call_id
        while unique_id in used_ids or (unique_id != call_id and unique_id in all_ids):
            number = last_numbers.get(call_id, 1) + 1
            last_numbers[call_id] = number
            unique_id = f"{call_id}-{number}"
        used_ids.add(unique_id)
        unique_ids.append(unique_id)
    return unique_ids
