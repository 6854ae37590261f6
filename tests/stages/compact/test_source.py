"""Facts of a conversation, gathered from its raw messages."""

from __future__ import annotations

import pytest
from compactions import LINES, count, replacement_of
from histories import (
    assistant,
    conversation,
    histories,
    said,
    step,
    system,
    tool_result,
    tool_use,
    user,
    view,
)
from hypothesis import given

from ctxpipe.messages import Message, split_system
from ctxpipe.placeholders.notes import StepsNote
from ctxpipe.placeholders.summaries import (
    ACKNOWLEDGED,
    FILE_ACKNOWLEDGED,
    IN_PROGRESS,
    SUMMARY,
    reminder,
    restored_text,
)
from ctxpipe.stages.compact.evidence import evidence_block
from ctxpipe.stages.compact.source import Source, after_summary, gather_facts
from ctxpipe.stages.reading.conversation_facts import ConversationFacts


def test_evidence_is_gathered_from_the_messages_alone():
    history = conversation(
        user("First."),
        view("t1", "both.py", "x"),
        step("t2", "bash", {"command": "make"}, "exit code 2"),
        user("Second."),
        step("t3", "bash", {"command": "ls"}, "ok"),
        step("t4", "bash", {"command": "make"}, "ok"),
    )

    found = gather_facts(Source(history, ["/1.json"], is_raw=True))

    assert found.paths == {"both.py": False}
    assert list(found.commands.items()) == [("ls", False), ("make", False)]
    assert (found.requests, found.archives) == (["First.", "Second."], ["/1.json"])


EARLIER = conversation(
    user("First. <command>Be kind.</command>"),
    step("t1", "write_file", {"path": "a.py"}, "ok"),
    step("t2", "bash", {"command": "make"}, "exit code 2, see ID-77"),
    assistant("ID-77 it is."),
)


LATER = conversation(
    user("Second."),
    view("t3", "a.py", "x"),
    view("t4", "b.py", "x"),
    step("t5", "bash", {"command": "make"}, "ok"),
    assistant("ID-77 is done."),
)


def test_facts_of_what_came_before_are_as_good_as_its_messages():
    earlier = gather_facts(Source(EARLIER, is_raw=True))

    found = gather_facts(Source(LATER, is_raw=True, earlier=earlier))

    assert found == gather_facts(Source([*EARLIER, *LATER], is_raw=True))
    assert list(found.paths.items()) == [("a.py", True), ("b.py", False)]
    assert found.orders == ["<command>Be kind.</command>"]
    assert found.identifiers == ["ID-77"]


@given(histories(), histories())
def test_so_they_are_for_every_history(before: list[Message], after: list[Message]):
    earlier = gather_facts(Source(before, is_raw=True))

    found = gather_facts(Source(after, is_raw=True, earlier=earlier))
    whole = gather_facts(Source([*before, *after], is_raw=True))

    assert list(found.paths.items()) == list(whole.paths.items())
    assert found.requests == whole.requests
    assert found.orders == whole.orders
    assert list(found.commands) == list(whole.commands)


LOOK_ALIKES = [
    f"{SUMMARY}S{evidence_block(LINES, 2000, count)[0]}",
    f"{SUMMARY}S{reminder(['<command>x</command>'])}",
    restored_text("a.py", "<command>x</command>"),
    restored_text("a\n.py", "<command>x</command>"),
]


@pytest.mark.parametrize("is_raw", [True, False])
@pytest.mark.parametrize("text", LOOK_ALIKES)
def test_a_text_in_the_form_of_ctxpipe_is_the_users_words_in_a_raw_history_only(text: str, is_raw):
    source = Source([user(text), assistant("What?")], is_raw=is_raw)

    orders = ["<command>x</command>"] if is_raw and "<command>" in text else []
    requests = [text] if is_raw else []
    expected = ConversationFacts(identifiers=[], requests=requests, orders=orders)
    assert gather_facts(source) == expected


def test_what_a_compaction_kept_of_its_archive_is_not_counted_twice():
    rule = user("Rule.")
    request = user("Fix it.")
    last = step("t1")
    archived = [rule, assistant("ok"), request, *last]
    context = [
        user(f"{SUMMARY}S"),
        system("Plan mode."),
        assistant(ACKNOWLEDGED),
        user(restored_text("a.py", "x")),
        assistant(FILE_ACKNOWLEDGED),
        rule,
        assistant("Noted."),
        user(f"{IN_PROGRESS}Fix it."),
        *last,
        assistant("Done."),
        user("Fix it."),
    ]

    assert after_summary(context, archived, lambda message: message) == context[-2:]


def test_blocks_that_a_compaction_carried_on_are_not_counted_twice():
    gadget = {"type": "gadget", "number": 1}
    search = tool_use("s")
    other = tool_use("t")
    loaded = tool_result("s", [{"type": "tool_reference", "tool_name": "x"}])
    archived = [
        user("Fix it.", gadget),
        assistant(search, other),
        user(loaded, tool_result("t")),
        assistant("Done."),
    ]
    context = [
        user(f"{SUMMARY}S"),
        assistant(ACKNOWLEDGED),
        user(gadget),
        assistant(search),
        user(loaded),
        assistant("Noted."),
        user({"type": "gadget", "number": 2}, "And now?"),
    ]

    assert after_summary(context, archived, lambda message: message) == context[-1:]


def test_a_step_of_an_archived_note_that_was_carried_on_is_not_counted_as_new():
    lines = ["1 bash dev → 60 chars running b7", "2 bash make → 9 chars failed", " no rule"]
    archived = [
        user("Go."),
        user("\n".join([StepsNote("/f/", 1, 2).heading, *lines])),
        assistant("Done."),
    ]
    context = [
        user(f"{SUMMARY}S"),
        assistant(ACKNOWLEDGED),
        user("\n".join([StepsNote("/f/", 2, 2).heading, *lines[1:]])),
        assistant("Noted."),
        user("Go."),
        assistant("Noted."),
        user("And now?"),
    ]

    assert after_summary(context, archived, lambda message: message) == context[-1:]


@given(histories())
def test_the_evidence_of_a_raw_history_has_every_path_and_request(history: list[Message]):
    _, rest = split_system(history)
    evidence = replacement_of([], rest).evidence

    assert set(evidence.paths) == set(gather_facts(Source(rest)).paths)
    told = "\n\n".join([*evidence.requests, *said(replacement_of([], rest).closing)])
    assert all(words in told for words in Source(rest, is_raw=True).words_in(rest))


def test_a_tool_use_in_a_users_hands_is_no_call():
    assert gather_facts(Source([user(tool_use("t", "read_file", {"path": "a.py"}))])).paths == {}
