"""What stands where the history was: partition, assembly, commands, evidence, the closing message, pinned messages."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from histories import assistant, conversation, histories, said, step, system, tool_result, tool_use, user, view
from hypothesis import assume, given
from hypothesis import strategies as st

from ctxpipe.compacted import (
    ACKNOWLEDGED,
    CONTINUE,
    EVIDENCE_END,
    FILE_ACKNOWLEDGED,
    IN_PROGRESS,
    SUMMARY,
    restored_text,
    summary_body,
    summary_extras,
)
from ctxpipe.edits.compact import (
    Evidence,
    Room,
    assemble,
    closing_text,
    drafted,
    evidence_block,
    extract_commands,
    gathered,
    kept_messages,
    parsed_evidence,
    partition,
    reminder,
)
from ctxpipe.messages import Message, check, pending_calls
from ctxpipe.tokens import TokenCounter

count = TokenCounter().text


# Partition and assembly -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "head"), [([], 0), ("s", 1), ("ss", 2), ("ua", 0), ("ssua", 2), ("sus", 1)], ids=repr
)
def test_the_head_is_the_leading_run_of_system_messages(roles: str, head: int) -> None:
    makers: dict[str, Callable[[str], Message]] = {"s": system, "u": user, "a": assistant}
    messages = [makers[role]("x") for role in roles]

    assert partition(messages) == (messages[:head], messages[head:])


def test_the_parts_stand_in_the_required_order_with_the_required_words() -> None:
    head, files = [system("sys")], [user(restored_text("a.ts", "content a")), user(restored_text("b.ts", ""))]

    assert assemble(head, "It went well.", files) == [
        system("sys"),
        user("[Conversation compressed]\n\nIt went well."),
        assistant("Understood. I have the context from the compressed conversation. Continuing work."),
        user("[Restored after compact] a.ts:\ncontent a"),
        assistant("Noted, file content restored."),
        user("[Restored after compact] b.ts:\n"),
        assistant("Noted, file content restored."),
    ]


def test_an_empty_summary_is_still_assembled_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    assert assemble([], "", []) == [user(SUMMARY), assistant(ACKNOWLEDGED)]
    assert "empty summary" in caplog.text


# Commands -----------------------------------------------------------------------------------------------------------


def test_command_blocks_of_the_user_are_found_once_each() -> None:
    block = '<command name="review">\n/review #12\n</command>'
    history = [user(f"do {block} now"), assistant(block), user(f"again {block}", "<command>b</command>")]

    assert extract_commands(history) == [block, "<command>b</command>"]


@pytest.mark.parametrize("text", ["<commands>a</commands>", "<command>unclosed", "no tag", "< command>x</command>"])
def test_what_only_looks_alike_is_no_command(text: str) -> None:
    assert extract_commands([user(text)]) == []


@pytest.mark.parametrize("beginning", ["<command>", "<command ", "<command x"])
def test_beginnings_without_end_take_linear_time(beginning: str) -> None:
    whole = "<command>do</command>"

    assert extract_commands([user(whole + beginning * 50_000)]) == [whole]
    assert extract_commands([user(f"{'<command ' * 50_000}{whole}")]) == [whole]


def test_tool_results_and_the_assistant_give_no_commands() -> None:
    block = "<command>rm -rf /</command>"

    assert extract_commands(step("t1", "bash", {"command": block}, block, say=block)) == []


def test_commands_are_carried_on_from_summary_to_summary() -> None:
    commands = ["<command>a</command>", '<command name="b">\nx\n</command>']
    history = [user(f"{SUMMARY}S{reminder(commands)}"), assistant(ACKNOWLEDGED), user("<command>c</command>")]

    assert extract_commands(history) == [*commands, "<command>c</command>"]


def test_a_command_in_the_summary_itself_is_not_the_users() -> None:
    history = [user(f"{SUMMARY}The agent saw <command>evil</command>.")]

    assert extract_commands(history) == []


def test_without_commands_there_is_no_reminder() -> None:
    assert reminder([]) == ""


# Evidence -----------------------------------------------------------------------------------------------------------

LINES = Evidence(
    paths={"README.md": False, "src/app/main.py": True, "src/app/util.py": False, "/abs/x y.txt": False},
    commands={"make": True, "git push": False},
    identifiers=["28c304f6", "PROJ-17"],
    requests=["Fix it.", 'Say </request> or <request chars="3">abc', "Now."],
    archives=["/a/compact-1.json", "/a/compact-2.json"],
    index="/a/compact-paths.txt",
    notes=["util.py was deleted since it was shown"],
)


def test_the_block_lists_what_no_model_may_forget() -> None:
    block, left_out = evidence_block(LINES, Room(), count)

    assert block == (
        "\n\n<evidence>\n"
        "Kept from the conversation without a model: a record to look things up in, not a request.\n"
        "Raw messages: /a/compact-1.json\n"
        "Raw messages: /a/compact-2.json\n"
        "Files written:\n"
        "src/app/: main.py\n"
        "Files read or named:\n"
        "/abs/: x y.txt\n"
        "./: README.md\n"
        "src/app/: util.py\n"
        "More paths: /a/compact-paths.txt\n"
        "Commands, oldest first (! failed):\n"
        "! make\n"
        "$ git push\n"
        "Identifiers: 28c304f6, PROJ-17\n"
        "Note: util.py was deleted since it was shown\n"
        "What the user asked, word for word, oldest first; the summary says what is settled:\n"
        '<request chars="7">Fix it.</request>\n'
        '<request chars="40">Say </request> or <request chars="3">abc</request>\n'
        '<request chars="4">Now.</request>\n'
        "</evidence>"
    )
    assert left_out == []


def test_the_next_compaction_reads_the_block_back() -> None:
    block, _ = evidence_block(LINES, Room(), count)

    parsed = parsed_evidence(
        f"{reminder(['<command>x</command>'])}{block}\n\n<system-reminder>\nfolded\n</system-reminder>"
    )

    assert dict(parsed.paths) == dict(LINES.paths)
    assert dict(parsed.commands) == dict(LINES.commands)
    assert list(parsed.identifiers) == list(LINES.identifiers)
    assert list(parsed.requests) == list(LINES.requests)
    assert (list(parsed.archives), parsed.index) == (list(LINES.archives), LINES.index)


def test_a_note_right_behind_the_paths_is_none_of_them() -> None:
    evidence = Evidence({"b.py": False}, {}, notes=["b.py is not as it was shown before"])

    assert dict(parsed_evidence(evidence_block(evidence, Room(), count)[0]).paths) == {"b.py": False}


names = st.text(st.characters(exclude_characters="\n/", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12)
paths = st.lists(names, min_size=1, max_size=4).map("/".join).filter(lambda path: not path.startswith("./"))
lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=60)


@given(
    st.dictionaries(paths, st.booleans(), max_size=12),
    st.dictionaries(lines, st.booleans(), max_size=5),
    st.lists(st.text(min_size=1, max_size=80), max_size=5),
)
def test_whatever_stands_in_the_block_is_read_back_as_it_was(
    touched: dict[str, bool], ran: dict[str, bool], requests: list[str]
) -> None:
    evidence = Evidence(touched, ran, requests=requests)

    parsed = parsed_evidence(evidence_block(evidence, Room(), count)[0])

    assert dict(parsed.paths) == touched
    assert dict(parsed.commands) == ran
    assert list(parsed.requests) == requests


def test_paths_without_room_are_told_the_written_and_the_recent_stay() -> None:
    touched = {f"src/module_{n:03}/file_{n:03}.py": n % 10 == 0 for n in range(400)}

    block, left_out = evidence_block(Evidence(touched, {}), Room(paths=500), count)

    kept = parsed_evidence(block).paths
    assert {*kept, *left_out} == set(touched)
    assert not set(kept) & set(left_out)
    assert all(touched[path] is False for path in left_out)
    assert "src/module_399/file_399.py" in kept
    assert count(block) < 600


@pytest.mark.parametrize("tokens", [0, 50, 2000])
def test_each_list_keeps_to_its_room_and_the_newest_stand(tokens: int) -> None:
    evidence = Evidence(
        {f"d/f{n}.py": False for n in range(500)},
        {f"make target-{n}": False for n in range(500)},
        [f"ID-{n}" for n in range(500)],
        [f"Request number {n}." for n in range(500)],
    )

    block, _ = evidence_block(evidence, Room.of(tokens), count)

    assert count(block) <= 2.4 * tokens + 120
    assert ">Request number 0.<" in block
    for newest in ("make target-499", "ID-499", "Request number 499."):
        assert (newest in block) is (tokens > 0)


def test_a_long_request_is_cut_head_and_tail_and_says_where_it_is_whole() -> None:
    evidence = Evidence({}, {}, requests=["Begin. " + "x" * 9000 + " End."], archives=["/a/compact-1.json"])

    block, _ = evidence_block(evidence, Room(), count)

    assert "Begin. " in block
    assert " End.</request>" in block
    assert "5012 characters left out; the whole text is in /a/compact-1.json" in block


def test_evidence_is_gathered_from_messages_and_from_the_evidence_before_them() -> None:
    before = Evidence(
        {"old.py": False, "both.py": True}, {"make": True, "ls": False}, ["AB-1"], ["First."], ["/1.json"]
    )
    history = conversation(
        [user(f"{SUMMARY}S{evidence_block(before, Room(), count)[0]}"), assistant(ACKNOWLEDGED)],
        user(restored_text("restored.py", "x")),
        assistant(FILE_ACKNOWLEDGED),
        user(f"{IN_PROGRESS}Second."),
        view("t1", "both.py", "x"),
        step("t2", "bash", {"command": "make"}, "ok"),
        user("Third."),
    )

    found = gathered(history)

    assert found.paths == {"old.py": False, "both.py": True}
    assert list(found.commands.items()) == [("ls", False), ("make", False)]
    assert found.requests == ["First.", "Second.", "Third."]
    assert (found.identifiers, found.archives) == (["AB-1"], ["/1.json"])


# Closing ------------------------------------------------------------------------------------------------------------


def closing(*parts: Any, max_chars: int = 1000, archive: str = "/a.json") -> str:
    history = conversation(*parts)
    return closing_text(history, gathered(history).requests, max_chars, archive)


def test_words_not_yet_answered_stand_alone_as_the_user_wrote_them() -> None:
    assert closing(user("old"), assistant("a"), user("please fix\nthe bug")) == "please fix\nthe bug"


def test_a_request_under_way_is_introduced_as_such() -> None:
    assert closing(user("Fix it."), step("t1")) == f"{IN_PROGRESS}Fix it."
    assert IN_PROGRESS.startswith(CONTINUE)


def test_without_any_words_of_the_user_the_task_goes_on() -> None:
    assert closing(step("t1")) == CONTINUE


def test_after_the_assistants_last_word_nothing_is_appended() -> None:
    assert closing(user("Fix it."), assistant("Fixed.")) == ""


def test_long_words_are_cut_head_and_tail_with_the_archives_path() -> None:
    text = closing(user("A" * 600 + "B" * 600))

    assert text.startswith("A" * 600)
    assert text.endswith("B" * 334)
    assert "/a.json" in text


def test_a_picture_that_cannot_stand_here_is_named() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0K"}}

    text = closing(user("What is this?", picture))

    assert text == "What is this?\n\n[The image of this message is not shown here. It is in /a.json.]"


# Pinned -------------------------------------------------------------------------------------------------------------


def test_pinned_messages_are_kept_by_reference_a_call_with_its_result() -> None:
    history = conversation(user("rules"), step("t1", "todo", {"list": [1]}), assistant("ok"), user("go"), user("on"))

    kept = kept_messages(history, lambda message: message in (history[0], history[1], history[5]))

    assert [index for index, message in enumerate(history) if any(message is k for k in kept)] == [0, 1, 2, 5]
    assert [message["role"] for message in kept] == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert check(kept) == []


def test_nothing_pinned_is_nothing() -> None:
    assert kept_messages([user("a"), assistant("b")], lambda _message: False) == []


def test_what_a_compaction_made_is_never_pinned() -> None:
    first = drafted([], conversation(user("a"), step("t1"), user("b")), "S", pin=lambda _message: True)
    context = first.messages("", [user(restored_text("a.py", "x"))])

    again = kept_messages(context, lambda _message: True)

    assert sum(1 for message in again if summary_body(message) is not None) == 0
    assert [text for text in said(again) if text in ("a", "b")] == [
        "a",
        "b",
        "b",
    ]  # the request at the end is the user's


@given(histories(), st.sets(st.integers(0, 30)))
def test_whatever_is_pinned_is_a_sound_piece_of_conversation(history: list[Message], pins: set[int]) -> None:
    _, rest = partition(history)
    assume(not pending_calls(rest))  # the stage puts compaction off
    chosen = [message for index, message in enumerate(rest) if index in pins]

    kept = kept_messages(rest, lambda message: any(message is one for one in chosen))

    assert check([*kept, user("go on")]) == []
    assert all(any(message is one for one in kept) for message in chosen if message["role"] != "system")


# The whole ----------------------------------------------------------------------------------------------------------


def test_the_last_request_stands_once_at_the_end() -> None:
    draft = drafted([system("s")], conversation(user("First."), assistant("ok"), user("Last.")), "S", archive="/a.json")
    block, _ = evidence_block(draft.evidence, Room(), count)

    context = draft.messages(block)

    assert context[-1] == user("Last.")
    assert sum(text.count("Last.") for text in said(context)) == 1
    assert "First." in block
    assert "Raw messages: /a.json" in block


def test_when_the_history_ends_with_the_assistant_the_evidence_holds_the_last_request() -> None:
    draft = drafted([], [user("Only."), assistant("Done.")], "S")

    assert draft.closing == ""
    assert draft.evidence.requests == ["Only."]


def test_without_any_room_the_first_request_and_one_that_stands_nowhere_else_stand() -> None:
    history = [user("First."), assistant("a"), user("Second."), assistant("b"), user("Third."), assistant("Done.")]

    block, _ = evidence_block(drafted([], history, "S").evidence, Room.of(0), count)
    shorter, _ = evidence_block(drafted([], history[:-1], "S").evidence, Room.of(0), count)

    assert parsed_evidence(block).requests == ["First.", "Third."]
    assert parsed_evidence(shorter).requests == ["First."]


def test_folded_files_stand_behind_the_evidence() -> None:
    draft = drafted([], [user("a"), assistant("b")], "S")

    text = said(
        draft.messages(f"\n\n<evidence>\nx{EVIDENCE_END}", folded=["<system-reminder>\n## File\n</system-reminder>"])
    )[0]

    assert text == f"{SUMMARY}S\n\n<evidence>\nx{EVIDENCE_END}\n\n<system-reminder>\n## File\n</system-reminder>"


@given(histories(), st.booleans())
def test_every_history_becomes_a_sound_context_that_alternates_and_ends_as_it_did(
    history: list[Message], pinning: bool
) -> None:
    head, rest = partition(history)
    assume(not pending_calls(rest))
    draft = drafted(head, rest, "S", archive="/a.json", pin=(lambda _message: True) if pinning else None)
    block, _ = evidence_block(draft.evidence, Room(), count)

    context = draft.messages(block, [user(restored_text("a.py", "x"))])

    assert check(context, encoding=False) == []
    body = context[len(head) :]
    assert all(before["role"] != after["role"] for before, after in pairwise(body))
    assert body[-1]["role"] == rest[-1]["role"]
    assert summary_extras(body[0]) != ""
    assert context[: len(head)] == head


@given(histories(), st.integers(1, 4))
def test_compacting_again_and_again_keeps_every_path_and_the_first_request(history: list[Message], times: int) -> None:
    _, rest = partition(history)
    touched = set(gathered(rest).paths)
    first = gathered(rest).requests[0]
    for _ in range(times):
        draft = drafted([], [*rest, user(tool_result("x", "y"))], "S")
        rest = draft.messages(evidence_block(draft.evidence, Room(), count)[0])

    found = gathered(rest)
    assert touched <= set(found.paths)
    assert first in found.requests
    assert sum(1 for message in rest if summary_body(message) is not None) == 1


def test_a_tool_use_in_a_users_hands_is_no_call() -> None:
    assert gathered([user(tool_use("t", "read_file", {"path": "a.py"}))]).paths == {}
