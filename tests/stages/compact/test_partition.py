"""The context in place of a compacted history.

Partition, assembly, commands, evidence, the closing message, pinned messages.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
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
    view,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from ctxpipe.messages import Message, check, pending_calls, split_system
from ctxpipe.placeholders.summaries import (
    ACKNOWLEDGED,
    CONTINUE,
    EVIDENCE_END,
    FILE_ACKNOWLEDGED,
    IN_PROGRESS,
    SUMMARY,
    archive_references,
    assemble,
    reminder,
    restored_text,
    summary_body,
    summary_extras,
)
from ctxpipe.stages.compact.partition import (
    ConversationFacts,
    Replacement,
    Source,
    after_summary,
    evidence_block,
    extract_commands,
    facts_to_keep,
    gather_facts,
    open_tail,
    pinned_messages,
    reason_to_postpone,
    replacements,
)
from ctxpipe.tokens import TokenCounter

count = TokenCounter().text


def replacements_of(
    head: list[Message], rest: list[Message], summary: str = "S", archive: str = "", **settings: Any
) -> list[Replacement]:
    """The replacements of a history that is the caller's own."""
    source = Source(rest, [archive] if archive else [], is_raw=True)
    facts = gather_facts(source)
    return replacements(head, rest, summary, source, facts, archive=archive, **settings)


def replacement_of(
    head: list[Message], rest: list[Message], summary: str = "S", **settings: Any
) -> Replacement:
    """The first of them."""
    return replacements_of(head, rest, summary, **settings)[0]


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


# Commands -----------------------------------------------------------------------------------------


def test_command_blocks_of_the_user_are_found_once_each():
    block = '<command name="review">\n/review #12\n</command>'
    history = [
        user(f"do {block} now"),
        assistant(block),
        user(f"again {block}", "<command>b</command>"),
    ]

    assert extract_commands(history) == [block, "<command>b</command>"]


@pytest.mark.parametrize("beginning", ["<command>", "<command ", "<command x"])
def test_beginnings_without_end_take_linear_time(beginning):
    whole = "<command>do</command>"

    assert extract_commands([user(whole + beginning * 50_000)]) == [whole]
    assert extract_commands([user(f"{'<command ' * 50_000}{whole}")]) == [whole]


def test_tool_results_and_the_assistant_give_no_commands():
    block = "<command>rm -rf /</command>"

    assert extract_commands(step("t1", "bash", {"command": block}, block, say=block)) == []


def test_commands_are_carried_on_from_summary_to_summary():
    commands = ["<command>a</command>", '<command name="b">\nx\n</command>']
    history = [
        user(f"{SUMMARY}S{reminder(commands)}"),
        assistant(ACKNOWLEDGED),
        user("<command>c</command>"),
    ]

    assert extract_commands(history) == [*commands, "<command>c</command>"]


def test_a_command_in_the_summary_itself_is_not_the_users():
    history = [user(f"{SUMMARY}The agent saw <command>evil</command>.")]

    assert extract_commands(history) == []


# Evidence -----------------------------------------------------------------------------------------

LINES = ConversationFacts(
    paths={
        "README.md": False,
        "src/app/main.py": True,
        "src/app/util.py": False,
        "/abs/x y.txt": False,
    },
    commands={"make": True, "git push": False},
    identifiers=["28c304f6", "PROJ-17"],
    requests=["Fix it.", 'Say </request> or <request chars="3">abc', "Now."],
    archives=["/a/compact-1.json", "/a/compact-2.json"],
    index="/a/compact-paths.txt",
    notes=["util.py was deleted since it was shown"],
)


def test_the_block_lists_what_no_model_may_forget():
    block, left_out = evidence_block(LINES, 2000, count)

    assert block == (
        "\n\n<evidence>\n"
        "Kept from the conversation without a model: a record to look things up in, not a "
        "request.\n"
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


def test_all_that_the_block_says_can_be_found_in_it():
    block, _ = evidence_block(LINES, 2000, count)

    parsed = parsed_evidence(
        f"{reminder(['<command>x</command>'])}{block}\n\n<system-reminder>\nfolded\n</system-reminder>"
    )

    assert dict(parsed.paths) == dict(LINES.paths)
    assert dict(parsed.commands) == dict(LINES.commands)
    assert list(parsed.identifiers) == list(LINES.identifiers)
    assert list(parsed.requests) == list(LINES.requests)
    assert (list(parsed.archives), parsed.index) == (list(LINES.archives), LINES.index)


def test_a_note_right_after_the_paths_is_not_read_as_a_path():
    evidence = ConversationFacts({"b.py": False}, {}, notes=["b.py is not as it was shown before"])

    assert dict(parsed_evidence(evidence_block(evidence, 2000, count)[0]).paths) == {"b.py": False}


names = st.text(
    st.characters(exclude_characters="\n/", exclude_categories=["Cs", "Cc"]),
    min_size=1,
    max_size=12,
)
paths = (
    st.lists(names, min_size=1, max_size=4)
    .map("/".join)
    .filter(lambda path: not path.startswith("./"))
)
lines = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=60)


@given(
    st.dictionaries(paths, st.booleans(), max_size=12),
    st.dictionaries(lines, st.booleans(), max_size=5),
    st.lists(st.text(min_size=1, max_size=80), max_size=5),
)
def test_every_line_of_the_block_is_read_back_unchanged(
    touched: dict[str, bool], ran: dict[str, bool], requests: list[str]
):
    evidence = ConversationFacts(touched, ran, requests=requests)

    parsed = parsed_evidence(evidence_block(evidence, 2000, count)[0])

    assert dict(parsed.paths) == touched
    assert dict(parsed.commands) == ran
    assert list(parsed.requests) == requests


def test_paths_that_do_not_fit_are_returned_and_written_and_recent_ones_stay():
    touched = {f"src/module_{n:03}/file_{n:03}.py": n % 10 == 0 for n in range(400)}

    block, left_out = evidence_block(ConversationFacts(touched, {}), 500, count)

    kept = parsed_evidence(block).paths
    assert {*kept, *left_out} == set(touched)
    assert not set(kept) & set(left_out)
    assert all(touched[path] is False for path in left_out)
    assert "src/module_399/file_399.py" in kept
    assert count(block) < 600


@pytest.mark.parametrize("tokens", [0, 50, 2000])
def test_each_list_keeps_to_its_budget_and_has_the_newest_lines(tokens):
    evidence = ConversationFacts(
        {f"d/f{n}.py": False for n in range(500)},
        {f"make target-{n}": False for n in range(500)},
        [f"ID-{n}" for n in range(500)],
        [f"Request number {n}." for n in range(500)],
    )

    block, _ = evidence_block(evidence, tokens, count)

    assert count(block) <= 2.4 * tokens + 120
    assert ">Request number 0.<" in block
    for newest in ("make target-499", "ID-499", "Request number 499."):
        assert (newest in block) is (tokens > 0)


def test_a_long_request_is_cut_head_and_tail_and_says_where_it_is_whole():
    evidence = ConversationFacts(
        {}, {}, requests=["Begin. " + "x" * 9000 + " End."], archives=["/a/compact-1.json"]
    )

    block, _ = evidence_block(evidence, 2000, count)

    assert "Begin. " in block
    assert " End.</request>" in block
    assert "5012 characters left out; the whole text is in /a/compact-1.json" in block


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


def test_of_very_many_facts_an_archive_keeps_the_latest_the_first_request_and_every_order():
    facts = ConversationFacts(
        {f"{number}.py": False for number in range(9_000)},
        {f"make {number}": False for number in range(900)},
        [f"ID-{number}" for number in range(900)],
        [f"Request {number}. " + "x" * 5_000 for number in range(100)],
        orders=["<command>x</command>"],
    )

    kept = facts_to_keep(facts)

    assert (len(kept.paths), [*kept.paths][-1]) == (5_000, "8999.py")
    assert (len(kept.commands), [*kept.commands][-1]) == (500, "make 899")
    assert (len(kept.identifiers), kept.identifiers[-1]) == (500, "ID-899")
    assert kept.requests == [facts.requests[0], *facts.requests[-39:]]
    assert kept.orders == facts.orders


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


def test_the_digest_follows_the_last_archive_and_both_are_read_back():
    evidence = ConversationFacts(
        {},
        {},
        archives=["/a/compact-1.json", "/a/x y (2).json"],
        digest="0123abcd-" * 3 + "0123abcd",
    )

    block, _ = evidence_block(evidence, 2000, count)

    assert "Raw messages: /a/compact-1.json\n" in block
    assert archive_references(f"{SUMMARY}S{block}") == [("/a/x y (2).json", evidence.digest)]


@given(
    st.lists(paths, max_size=6),
    st.lists(st.text(max_size=40), max_size=4),
    st.lists(st.text(max_size=40), max_size=4),
)
def test_nothing_in_the_block_breaks_a_line_but_the_users_own_words(
    touched: list[str], ran: list[str], notes: list[str]
):
    broken = [f"{path}{mark}x" for path in touched for mark in "\n\r\x00\x85\u2028\x1b"]
    history = conversation(
        *(view(str(n), path, "x") for n, path in enumerate(broken)),
        *(step(f"c{n}", "bash", {"command": line}, "ok") for n, line in enumerate(ran)),
    )
    evidence = gather_facts(Source([user("Go."), *history], is_raw=True))

    block, left_out = evidence_block(
        ConversationFacts(evidence.paths, evidence.commands, notes=notes), 10**6, count
    )

    told = block.removeprefix("\n\n<evidence>\n").removesuffix("\n</evidence>")
    assert left_out == []
    assert all(
        line.isprintable() or not set(line) & set("\r\x00\x85\u2028\x1b")
        for line in told.split("\n")
    )
    assert len(told.split("\n")) <= 5 + len(set(broken)) + len(ran) + len(notes)


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
RAN = {"type": "code_execution_tool_result", "tool_use_id": "srvtoolu_1", "content": {}}
MCP = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "x", "server_name": "s", "input": {}}
UNKNOWN = {"type": "hologram_tool_use", "id": "holotoolu_1", "name": "draw", "input": {}}
DRAWN = {"type": "hologram_tool_result", "tool_use_id": "holotoolu_1", "content": []}
BY_CODE = {"caller": {"type": "code_execution_20250825", "tool_id": "srvtoolu_1"}}


@pytest.mark.parametrize(
    ("tail", "length"),
    [
        ([assistant("a"), user("b")], 1),
        ([assistant("a"), user("b"), user("c"), system("s")], 3),
        ([assistant("a"), *step("t")], 3),
        ([user("x"), assistant("a"), assistant("b"), *step("t")], 4),
        ([assistant(SEARCH, FOUND, tool_use("t", "bash", {})), user(tool_result("t", "x"))], 2),
        (
            [
                assistant(SEARCH, tool_use("t", "a", {})),
                user(tool_result("t", "x")),
                assistant(FOUND, tool_use("u", "b", {})),
                user(tool_result("u", "x")),
            ],
            4,
        ),
        (
            [
                assistant(CODE, {**tool_use("t", "a", {}), **BY_CODE}),
                user(tool_result("t", "x")),
                assistant(RAN, tool_use("u", "b", {})),
                user(tool_result("u", "x")),
            ],
            4,
        ),
        (
            [
                assistant(UNKNOWN, tool_use("t", "a", {})),
                user(tool_result("t", "x")),
                assistant(DRAWN, tool_use("u", "b", {})),
                user(tool_result("u", "x")),
            ],
            4,
        ),
        ([assistant("done")], 0),
    ],
)
def test_the_unanswered_part_never_splits_what_belongs_together(tail: list[Message], length):
    history = [user("old"), assistant("ok"), user("new"), *tail]

    assert open_tail(history) == len(history) - length


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


# Pinned -------------------------------------------------------------------------------------------


def test_pinned_messages_are_kept_by_reference_a_call_with_its_result():
    history = conversation(
        user("rules"), step("t1", "todo", {"list": [1]}), assistant("ok"), user("go"), user("on")
    )

    kept = pinned_messages(history, lambda message: message in (history[0], history[1], history[5]))

    indexes = [index for index, message in enumerate(history) if any(message is k for k in kept)]
    assert indexes == [0, 1, 2, 5]
    roles = [message["role"] for message in kept]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert check(kept) == []


def test_what_a_compaction_made_is_never_pinned():
    first = replacement_of(
        [], conversation(user("a"), step("t1"), user("b")), "S", pin=lambda _message: True
    )
    context = first.messages("", [user(restored_text("a.py", "x"))])

    again = pinned_messages(context, lambda _message: True)

    assert sum(1 for message in again if summary_body(message) is not None) == 0
    assert [text for text in said(again) if text in ("a", "b")] == ["a", "b"]


@given(histories(), st.sets(st.integers(0, 30)))
def test_pinned_messages_are_a_valid_piece_of_conversation(history: list[Message], pins: set[int]):
    _, rest = split_system(history)
    assume(not pending_calls(rest))  # the stage puts compaction off
    chosen = [message for index, message in enumerate(rest) if index in pins]

    kept = pinned_messages(rest, lambda message: any(message is one for one in chosen))

    assert check([*kept, user("go on")]) == []
    assert all(
        any(message is one for one in kept) for message in chosen if message["role"] != "system"
    )


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
    replacement = replacement_of(head, rest, archive="/a.json", pin=pin, whole=whole)
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


@given(histories())
def test_the_evidence_of_a_raw_history_has_every_path_and_request(history: list[Message]):
    _, rest = split_system(history)
    evidence = replacement_of([], rest).evidence

    assert set(evidence.paths) == set(gather_facts(Source(rest)).paths)
    told = "\n\n".join([*evidence.requests, *said(replacement_of([], rest).closing)])
    assert all(words in told for words in Source(rest, is_raw=True).words_in(rest))


def test_a_tool_use_in_a_users_hands_is_no_call():
    assert gather_facts(Source([user(tool_use("t", "read_file", {"path": "a.py"}))])).paths == {}
