"""What still applies, as pieces that a compaction carries over."""

from __future__ import annotations

from typing import Any

from histories import assistant, conversation, step, text, tool_result, tool_use, user

from ctxpipe.messages import Message, check
from ctxpipe.placeholders.notes import StepsNote
from ctxpipe.stages.compact.arrangement import arrange
from ctxpipe.stages.compact.carry import select
from ctxpipe.stages.compact.governing import (
    MAX_WORDS_CHARS,
    SKILL_TOKENS,
    Shortening,
    governing_pieces,
    instruction_notes,
    requests_to_repeat,
)
from ctxpipe.stages.compact.pieces import pins
from ctxpipe.stages.reading.carry_candidates import Candidate, CarryKind
from ctxpipe.stages.reading.what_applies import what_applies

ARCHIVE = "/a/compact-1.json"


def words(content: str) -> int:
    return len(content.split())


def pieces(messages: list[Message]) -> list[Candidate]:
    shortening = Shortening(words, ARCHIVE)
    return governing_pieces(messages, what_applies(messages), int, shortening)


def carried(messages: list[Message]) -> list[Message]:
    return arrange(pieces(messages))


def skill(number: int, count: int = 50) -> str:
    return f"Base directory for this skill: /s/{number}\n\n" + "rule " * count


def failed(id: str, given: dict[str, Any], result: str) -> list[Message]:  # noqa: A002
    return [assistant(tool_use(id, "bash", given)), user(tool_result(id, result, is_error=True))]


def test_words_that_follow_each_other_become_one_message_of_the_user():
    messages = conversation(user("Never push."), step("t1"), user("Go on."), step("t2"))

    assert carried(messages) == [user(text("Never push."), text("Go on."))]


def test_a_plan_is_carried_with_its_call_and_its_result():
    plan = step("t1", "ExitPlanMode", {"plan": "1. Move."}, "Approved.")
    messages = conversation(user("Go."), plan, step("t2"))

    result = carried(messages)

    assert result == [user("Go."), *plan]
    assert check(result) == []


def test_a_text_of_a_tool_never_becomes_a_text_of_the_user():
    messages = conversation(
        user("Go."), step("t1", "load_skill", {"name": "x"}, "Push at once. " * 30)
    )

    [_, _, result] = carried(messages)

    assert result["content"][0]["type"] == "tool_result"  # type: ignore[index]


def test_of_a_long_skill_head_and_tail_are_carried_with_the_path_of_the_whole():
    messages = conversation(user("Go."), user(text(skill(1, 3 * SKILL_TOKENS))), step("t1"))

    [_, piece] = pieces(messages)

    assert piece.is_cut
    carried_text = str(piece.messages[0]["content"])
    assert carried_text.count("rule") <= SKILL_TOKENS
    assert f"the whole text is in {ARCHIVE}" in carried_text


def test_of_a_long_paste_head_and_tail_are_carried():
    paste = f"BEGIN {'x' * 3 * MAX_WORDS_CHARS} END"
    messages = conversation(user("Go."), step("t1"), user(paste), step("t2"))

    [_, piece] = pieces(messages)

    text_of_piece = str(piece.messages[0]["content"])
    assert text_of_piece.startswith("BEGIN")
    assert text_of_piece.endswith("END")
    assert len(text_of_piece) < MAX_WORDS_CHARS + 200


def test_of_a_long_error_the_lines_that_say_what_went_wrong_are_carried():
    output = "ok\n" * 2_000 + "AssertionError: two tags\nExit code 1"
    messages = conversation(user("Go."), failed("t1", {"command": "pytest"}, output), step("t2"))

    [_, call, result] = carried(messages)

    assert "pytest" in str(call)
    assert "AssertionError: two tags" in str(result)
    assert len(str(result)) < 500


def test_a_refused_plan_with_words_of_the_user_is_carried_once():
    refusal = "The tool use was rejected. To tell you how to proceed, the user said:\nNo cash."
    messages = [
        user("Go."),
        assistant(tool_use("t1", "ExitPlanMode", {"plan": "1. Refund."})),
        user(tool_result("t1", refusal, is_error=True)),
        *step("t2"),
    ]

    [_, plan] = pieces(messages)

    assert plan.kind == CarryKind.PLAN
    assert "No cash." in str(plan.messages)


def test_the_first_words_come_before_newer_ones_and_short_words_before_long_ones():
    texts = ["The task.", "long " * 1_000, "Newest."]
    messages: list[Message] = []
    for number, content in enumerate(texts):
        messages += [user(content), *step(f"t{number}")]
    candidates = pieces(messages)

    def chosen(limit: int) -> list[int]:
        sizes = [words(str(piece.messages[0]["content"])) for piece in candidates]
        return [piece.index for piece in select(candidates, sizes, limit, limit).chosen]

    assert chosen(2) == [0]
    assert chosen(4) == [0, 6]
    assert chosen(2_000) == [0, 3, 6]


def test_requests_among_the_carried_words_are_not_repeated_in_the_evidence():
    messages = conversation(user("One."), step("t1"), user("Two."), step("t2"))
    [one, _] = pieces(messages)

    assert requests_to_repeat(["One.", "Two."], [one]) == ["Two."]
    assert requests_to_repeat(["One.", "One."], [one]) == ["One."]


def test_a_plan_in_words_of_the_assistant_stays_its_own():
    plan = assistant("<proposed_plan>1. Move.</proposed_plan>")
    messages = conversation(user("Go."), step("t1"), user("Plan."), plan, user("Do."), step("t2"))

    assert carried(messages) == [user(text("Go."), text("Plan.")), plan, user("Do.")]


def test_a_step_of_a_note_is_carried_as_a_note_and_never_among_the_user_s_words():
    note = user(
        f"{StepsNote('/f/', 1, 3).heading}\n"
        "1 bash ls → 9 chars\n"
        "2 bash npm run dev → 60 chars running b7\n"
        "3 bash make → 9 chars failed\n no rule"
    )
    messages = conversation(user("Go."), note, user("Go on."), step("t2"))
    shortening = Shortening(words, ARCHIVE)
    applicable = what_applies(messages, notes_folder="/f/")

    result = arrange(governing_pieces(messages, applicable, int, shortening))

    assert result == [
        user("Go."),
        assistant("Noted."),
        user(f"{StepsNote('/f/', 2, 2).heading}\n2 bash npm run dev → 60 chars running b7"),
        assistant("Noted."),
        user(f"{StepsNote('/f/', 3, 3).heading}\n3 bash make → 9 chars failed\n no rule"),
        assistant("Noted."),
        user("Go on."),
    ]
    assert check(result) == []


def test_requests_that_share_one_carried_message_are_not_repeated():
    messages = conversation(user("One.", "Two, a.", "Two, b.", "Three."), step("t1"))
    requests = ["One.", "Two, a.\n\nTwo, b.", "Three.", "Two, b.\n\nThree."]

    assert requests_to_repeat(requests[:3], pieces(messages)) == []
    assert requests_to_repeat([*requests[:3], "b."], pieces(messages)) == ["b."]
    assert requests_to_repeat(requests[2:], pieces(messages)) == ["Three."]


def test_a_request_that_an_archive_has_redacted_is_not_repeated_beside_the_carried_words():
    messages = conversation(user("The key is 12345."), step("t1"))

    def redact(text: str) -> str:
        return text.replace("12345", "[hidden]")

    assert requests_to_repeat(["The key is [hidden]."], pieces(messages), redact=redact) == []


def test_only_what_is_left_out_of_a_message_is_repeated():
    long = "word " * 2_000
    messages = conversation(user("Read.", long, "Go."), step("t1"))
    request = f"Read.\n\n{long}\n\nGo."
    [read, pasted, go] = pieces(messages)

    assert requests_to_repeat([request], [read, go], [pasted]) == [long]
    assert requests_to_repeat([request], [read, pasted.shorter(1_000), go]) == []
    assert requests_to_repeat([request], [], [read, pasted, go]) == [request]


def test_a_text_that_is_cut_is_repeated_if_the_evidence_has_it_whole():
    rule = "rule " * 700
    [piece] = pieces(conversation(user(rule), step("t1")))

    assert requests_to_repeat([rule], [piece]) == []
    assert requests_to_repeat([rule], [piece.shorter(1_000)]) == [rule]


def test_a_request_that_the_caller_has_pinned_is_not_repeated():
    rule = user("No tabs.")
    pinned = pins([rule, assistant("Fine.")], lambda message: message == rule)

    assert requests_to_repeat(["No tabs.", "Go."], pinned) == ["Go."]
    words_behind_result = conversation(step("t1")[:1], user(tool_result("t1", "x"), "No tabs."))
    pinned = pins(words_behind_result, lambda message: "No tabs." in str(message))
    assert requests_to_repeat(["No tabs.", "Go."], pinned) == ["Go."]


def test_an_instruction_file_is_named_with_its_heading():
    messages = conversation(
        user("Go."), step("t1", "Read", {"file_path": "/src/AGENTS.md"}, "# House rules\nNo tabs.")
    )

    assert instruction_notes(what_applies(messages)) == [
        "the instructions in /src/AGENTS.md (# House rules) were read and apply"
    ]
