"""The evidence that follows a summary."""

from __future__ import annotations

import pytest
from compactions import LINES, count
from evidence import parsed_evidence
from histories import conversation, step, user, view
from hypothesis import example, given
from hypothesis import strategies as st

from ctxpipe.placeholders.summaries import SUMMARY, archive_references, reminder
from ctxpipe.stages.compact.evidence import evidence_block
from ctxpipe.stages.compact.source import Source, gather_facts
from ctxpipe.stages.reading.conversation_facts import ConversationFacts


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


@example({"C:/app.py": True, "C:/src/app.py": False, "D:\\data\\a.csv": False}, {}, [])
@example({"/,\\b": False}, {}, [])
@example({"$ /0": False, "! /0": True}, {"make": True}, [])
@example({"00 \\": False, ",\\": True, "a, b\\c.py": False}, {}, [])
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


def test_the_first_request_is_as_any_other_if_the_first_of_all_is_elsewhere_in_the_context():
    evidence = ConversationFacts(requests=["Third.", "Fourth."], needs_first_request=False)

    rich, _ = evidence_block(evidence, 100, count)
    lean, _ = evidence_block(evidence, 0, count)

    assert parsed_evidence(rich).requests == ["Third.", "Fourth."]
    assert parsed_evidence(lean).requests == []
    assert "[2 requests of that time are in the raw messages]" in lean


def test_a_request_is_cut_to_the_number_of_characters_that_the_context_can_hold():
    evidence = ConversationFacts(requests=["Begin. " + "x" * 9000 + " End."])

    block, _ = evidence_block(evidence, 0, count, max_request_chars=1_000)

    [request] = parsed_evidence(block).requests
    assert request.startswith("Begin. ")
    assert request.endswith(" End.")
    assert 900 < len(request) < 1_200


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
