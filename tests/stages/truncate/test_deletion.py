"""The block of messages that is deleted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from histories import assistant, chat, conversation, said, system, tool_result, tool_use, user, view

from ctxpipe.messages import Message, check, split_system
from ctxpipe.stages.truncate import selection as truncate
from ctxpipe.stages.truncate.deletion import delete_center
from ctxpipe.stages.truncate.parts import Part, join_parts
from ctxpipe.stages.truncate.selection import Window
from ctxpipe.tokens import TokenCounter

CHARS = TokenCounter(len)


def sizes(messages: Sequence[Message]) -> list[int]:
    return [CHARS.message(message) for message in messages]


def deleted(
    history: list[Message], middle: range, excess: int, window: Window = "average", marker: str = ""
) -> list[Message]:
    parts = [Part(index, message) for index, message in enumerate(history)]
    ground = truncate.editable_region(history, truncate.find_ends(history), middle)
    return join_parts(
        delete_center(parts, sizes(history), ground, excess, window=window, marker=marker)
    )


def alternates(messages: Sequence[Message]) -> bool:
    return all(one["role"] != other["role"] for one, other in pairwise(split_system(messages)[1]))


def test_the_block_has_excess_by_average_messages_around_the_centre():
    history = chat(30)
    average = sum(sizes(history[5:25])) / 20

    assert deleted(history, range(5, 25), int(17.5 * average)) == [*history[:6], *history[24:]]


def test_no_excess_deletes_nothing():
    history = chat(8)

    assert deleted(history, range(2, 6), 0) == history
    assert deleted(history, range(2, 6), -5) == history
    assert deleted(history, range(0), 10) == history


def test_the_block_is_widened_until_roles_alternate():
    history = chat(10)

    assert deleted(history, range(2, 8), 1) in (
        [*history[:4], *history[6:]],
        [*history[:3], *history[5:]],
    )


def test_the_block_never_leaves_the_middle():
    history = chat(10)

    assert deleted(history, range(2, 8), 10**9) == [*history[:2], *history[8:]]


def test_average_may_fall_short_and_covering_does_not():
    history = conversation(
        user("go"), *[(assistant("a" * 9), user("b")) for _ in range(8)], assistant("c" * 300)
    )
    middle = range(1, 17)
    excess = 41
    light = sizes(history)

    assert sum(light) - sum(sizes(deleted(history, middle, excess))) >= excess - 10
    uneven = conversation(
        user("go"), *[assistant("a" * 99), user("b")], *history[1:9], assistant("a" * 99), user("c")
    )
    average, covering = (
        deleted(uneven, range(1, 13), 100, window) for window in ("average", "covering")
    )
    assert (
        sum(sizes(uneven)) - sum(sizes(average)) < 100 <= sum(sizes(uneven)) - sum(sizes(covering))
    )


def test_a_call_goes_with_its_results_or_stays():
    history = conversation(
        user("go"), *[view(f"v{n}", "a.py", "x" * 50) for n in range(9)], assistant("done")
    )

    for excess in range(1, 500, 7):
        left = deleted(history, range(2, 16), excess)
        assert check(left) == []
        assert left[:3] == history[:3]
        assert left[-4:] == history[-4:]


def test_a_users_command_stays_as_a_hole_in_the_block():
    history = conversation(
        chat(14), user("m14 <command>keep</command>"), chat(17)[15:], chat(30)[17:]
    )

    left = deleted(history, range(5, 25), 16 * min(sizes(history)))

    assert history[14] in left
    assert len(left) <= 14
    assert alternates(left)


@pytest.mark.parametrize(
    ("part", "stays"),
    [
        ([user("do <command name='x'>it</command> now")], True),
        ([assistant(tool_use("t1")), user(tool_result("t1"), "<command>it</command>")], True),
        ([assistant("<command>it</command>"), user("do it")], False),
        ([assistant(tool_use("t1")), user(tool_result("t1", "<command>it</command>"))], False),
        ([user("<commands>it</commands>")], False),
    ],
)
def test_a_command_in_a_result_or_in_the_assistants_words_protects_nothing(
    part: list[Message], stays: bool
):
    history = conversation(chat(14)[len(part) - 1 :], part, chat(31)[15:])

    left = deleted(history, range(4, 26), 16 * min(sizes(history)))

    assert len(left) < len(history)
    assert (part[-1] in left) is stays


def test_a_marker_follows_the_users_words_before_the_block():
    history = chat(10)

    marked = deleted(history, range(2, 8), 1, marker="[cut]")

    assert sum("[cut]" in words for words in said(marked)) == 1
    place = next(i for i, message in enumerate(marked) if "[cut]" in said([message]))
    assert marked[place]["role"] == "user"
    assert said(marked[: place + 1])[:-1] == said(history[: place + 1])


def test_a_system_message_goes_with_the_users_message_before_it():
    history = conversation(chat(5), system("be brief"), chat(10)[5:])

    for excess in range(1, 200, 5):
        left = deleted(history, range(2, 9), excess)
        assert all(
            one["role"] == "user" for one, other in pairwise(left) if other["role"] == "system"
        )
