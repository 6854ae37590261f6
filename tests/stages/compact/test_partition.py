"""The context in place of a compacted history.

Partition, assembly, commands, evidence, the closing message, pinned messages.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from compactions import count, replacement_of, replacements_of
from evidence import parsed_evidence
from histories import (
    PICTURE,
    assistant,
    conversation,
    histories,
    said,
    step,
    system,
    tool_result,
    tool_use,
    user,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from ctxpipe.messages import Message, check, pending_calls, split_system
from ctxpipe.placeholders.summaries import (
    CONTINUE,
    EVIDENCE_END,
    IN_PROGRESS,
    SUMMARY,
    assemble,
    restored_text,
    summary_extras,
)
from ctxpipe.stages.compact.evidence import evidence_block
from ctxpipe.stages.compact.partition import reason_to_postpone
from ctxpipe.stages.compact.pieces import CarryRules
from ctxpipe.stages.reading.unanswered import open_tail

# Partition and assembly ---------------------------------------------------------------------------


def test_the_parts_have_the_required_order_and_words():
    head = [system("sys")]
    files = [user(restored_text("a.ts", "content a")), user(restored_text("b.ts", ""))]

    assert assemble(head, "It went well.", files) == [
        system("sys"),
        user("[Conversation compressed]\n\nIt went well."),
        assistant(
            "Understood. I have the context from the compressed conversation. Continuing work."
        ),
        user("[Restored after compact] a.ts:\ncontent a"),
        assistant("Noted, file content restored."),
        user("[Restored after compact] b.ts:\n"),
        assistant("Noted, file content restored."),
    ]


# Closing ------------------------------------------------------------------------------------------


def closings(*parts: Any, archive: str = "/a.json") -> list[list[Message]]:
    history = conversation(*parts)
    found = replacements_of([], history, archive=archive)
    return [list(replacement.closing) for replacement in found]


def cut(*parts: Any, **settings: Any) -> str:
    """The closing text where the whole does not fit."""
    return said(closings(*parts, **settings)[1])[0]


@pytest.mark.parametrize(
    "request_",
    [
        user("please fix\nthe bug"),
        user("What is this?", PICTURE),
        user(PICTURE),
        user("x" * 50_000),
    ],
)
def test_unanswered_words_are_the_very_message_that_the_user_wrote(
    request_: Message,
):
    [whole, *_] = closings(user("old"), assistant("a"), request_)

    assert whole == [request_]
    assert whole[0] is request_


def test_unseen_results_follow_the_current_request_with_their_call():
    shot = step("t1", "computer", {"action": "screenshot"}, [PICTURE])

    whole, shorter = closings(user("Fix it."), step("t0"), shot)

    assert whole == [user(f"{IN_PROGRESS}Fix it."), *shot]
    assert all(one is other for one, other in zip(whole[1:], shot, strict=True))
    assert shorter == [
        user(
            f"{IN_PROGRESS}Fix it.\n\n[The image of this message is not shown here. It is in "
            "/a.json.]"
        )
    ]
    assert closings(user("old"), assistant("ok"), step("t1"))[0][0] == user(f"{IN_PROGRESS}old")


def test_words_after_results_are_in_the_context_once():
    results = user(tool_result("t", "x"), "And hurry.")
    history = conversation(
        user("Fix it."), assistant("Well."), assistant(tool_use("t", "bash", {})), results
    )

    replacement = replacement_of([], history)

    assert replacement.closing == [user(f"{IN_PROGRESS}Fix it."), *history[1:]]
    assert replacement.evidence.requests == []


def test_without_any_words_of_the_user_the_task_continues():
    whole, shorter = closings(step("t1"))

    assert whole[0] == user(CONTINUE)
    assert shorter == [user(CONTINUE)]


def test_after_the_assistants_last_word_nothing_is_appended():
    assert closings(user("Fix it."), assistant("Fixed.")) == [[]]


def test_long_words_are_cut_head_and_tail_with_the_archives_path():
    text = cut(user("A" * 12_000 + "B" * 12_000))

    assert text.startswith("A" * 12_000)
    assert text.endswith("B" * 6_667)
    assert len(text) < 20_100
    assert "/a.json" in text


def test_a_picture_that_is_left_out_is_named():
    assert cut(user("What is this?", PICTURE)) == (
        "What is this?\n\n[The image of this message is not shown here. It is in /a.json.]"
    )


def test_cuts_are_reported():
    found = conversation(
        user("Go."),
        assistant(tool_use("t", "bash", {})),
        user(tool_result("t", [PICTURE]), "x" * 50_000),
    )

    whole, shorter = replacements_of([], found)

    assert whole.cuts == ()
    assert shorter.cuts == [
        "of the newest message's 50000 characters 20000 are in the context",
        "1 new tool results are in the archive only; DirectOffload moves such to files",
        "1 pictures or documents of the newest message are in the archive only",
    ]


SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
CODE = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "code_execution", "input": {}}
MCP = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "x", "server_name": "s", "input": {}}
UNKNOWN = {"type": "hologram_tool_use", "id": "holotoolu_1", "name": "draw", "input": {}}
DRAWN = {"type": "hologram_tool_result", "tool_use_id": "holotoolu_1", "content": []}


# When not -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "why"),
    [
        ([], "nothing but system messages"),
        ([user("a"), assistant(tool_use("t", "bash", {}))], "postponed: 1 calls"),
        ([user("a"), assistant("b", SEARCH)], "postponed: 1 calls of server tools"),
        ([user("a"), assistant(MCP)], "postponed: 1 calls of server tools"),
        ([user("a"), assistant(UNKNOWN)], "postponed: 1 calls of server tools"),
        ([user("a"), assistant(UNKNOWN, DRAWN, UNKNOWN)], "postponed: 1 calls of server tools"),
        ([user("a"), assistant(UNKNOWN, DRAWN), user("b")], ""),
        (
            [user("a"), assistant(CODE, tool_use("t", "a", {})), user(tool_result("t", "x"))],
            "postponed",
        ),
        (
            [
                user("a"),
                assistant(CODE, tool_use("t", "a", {})),
                user(tool_result("t", "x")),
                assistant(tool_use("u", "a", {})),
                user(tool_result("u", "x")),
            ],
            "postponed",
        ),
        ([user("a"), assistant(SEARCH, FOUND), user("b")], ""),
        ([user("a"), assistant(SEARCH), user("never mind")], ""),
        (
            [user("a"), assistant({"type": "compaction", "content": "S"}, "b"), user("c")],
            "left to the server",
        ),
        (
            [assistant({"type": "compaction", "content": "S", "signature": "x"}), user("c")],
            "left to the server",
        ),
        # one that has failed
        ([user("a"), assistant({"type": "compaction", "content": None}, "b"), user("c")], ""),
    ],
)
def test_what_the_server_has_not_finished_is_left_alone(history: list[Message], why):
    assert reason_to_postpone(history).startswith(why)
    assert bool(reason_to_postpone(history)) == bool(why)


# System messages from the middle ------------------------------------------------------------------


def test_system_messages_from_the_middle_are_carried_on_behind_the_summary_each_once():
    plan = system("Plan mode.")
    brief = system("Be brief.")
    history = conversation(
        user("a"),
        plan,
        assistant("b"),
        user("c"),
        brief,
        assistant("d"),
        user("e"),
        plan,
        assistant("f"),
    )

    replacement = replacement_of([system("head")], history)
    context = replacement.messages("")

    roles = [message["role"] for message in context]
    assert roles == ["system", "user", "system", "system", "assistant"]
    assert context[2] is brief
    assert context[3] is plan
    assert replacement_of([], [*context[1:], user("g")]).systems == [brief, plan]


def test_one_that_held_for_a_single_turn_is_not():
    passing: Any = {"role": "system", "content": "x", "clear_at": "next_user_message"}

    assert replacement_of([], [user("a"), passing, assistant("b")]).systems == []


# The whole ----------------------------------------------------------------------------------------


def test_the_last_request_is_in_the_context_once_at_the_end():
    replacement = replacement_of(
        [system("s")],
        conversation(user("First."), assistant("ok"), user("Last.")),
        "S",
        archive="/a.json",
    )
    block, _ = evidence_block(replacement.evidence, 2000, count)

    context = replacement.messages(block)

    assert context[-1] == user("Last.")
    assert sum(text.count("Last.") for text in said(context)) == 1
    assert "First." in block
    assert "Raw messages: /a.json" in block


def test_when_the_history_ends_with_the_assistant_the_evidence_holds_the_last_request():
    replacement = replacement_of([], [user("Only."), assistant("Done.")], "S")

    assert replacement.closing == []
    assert replacement.evidence.requests == ["Only."]


def test_without_a_budget_the_first_request_and_one_that_is_nowhere_else_stay():
    history = [
        user("First."),
        assistant("a"),
        user("Second."),
        assistant("b"),
        user("Third."),
        assistant("Done."),
    ]

    block, _ = evidence_block(replacement_of([], history, "S").evidence, 0, count)
    shorter, _ = evidence_block(replacement_of([], history[:-1], "S").evidence, 0, count)

    assert parsed_evidence(block).requests == ["First.", "Third."]
    assert parsed_evidence(shorter).requests == ["First."]


def test_folded_files_follow_the_evidence():
    replacement = replacement_of([], [user("a"), assistant("b")], "S")

    text = said(
        replacement.messages(
            f"\n\n<evidence>\nx{EVIDENCE_END}",
            folded_texts=["<system-reminder>\n## File\n</system-reminder>"],
        )
    )[0]

    assert text == (
        f"{SUMMARY}S\n\n<evidence>\nx{EVIDENCE_END}\n\n<system-reminder>\n## File\n"
        "</system-reminder>"
    )


@given(histories(), st.booleans(), st.booleans())
def test_every_history_becomes_a_valid_context_that_alternates_and_ends_as_it_did(
    history: list[Message], pinning: bool, whole: bool
):
    head, rest = split_system(history)
    assume(not pending_calls(rest))
    pin = (lambda _message: True) if pinning else None
    replacement = replacement_of(head, rest, archive="/a.json", carry=CarryRules(pin), whole=whole)
    block, _ = evidence_block(replacement.evidence, 2000, count)

    context = replacement.messages(block, [user(restored_text("a.py", "x"))])

    assert check(context, encoding=False) == []
    body = [message for message in context[len(head) :] if message["role"] != "system"]
    tail = rest[open_tail(rest) :] if whole else []
    rewritten = body[: len(body) - len(tail)]
    assert all(before["role"] != after["role"] for before, after in pairwise(rewritten))
    assert context[-1]["role"] == rest[-1]["role"]
    assert all(
        one is other for one, other in zip(context[len(context) - len(tail) :], tail, strict=True)
    )
    assert summary_extras(body[0]) != ""
    assert context[: len(head)] == head
