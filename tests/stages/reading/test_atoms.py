"""Atoms: the parts of a message that another one can refer to."""

from __future__ import annotations

import pytest
from histories import assistant, histories, text, thinking, tool_result, tool_use, user
from hypothesis import given, settings
from hypothesis import strategies as st

from ctxpipe.messages import Message
from ctxpipe.stages.reading.atoms import WEIGHTS, AtomIndex, atoms, content_text, path_atom, weight


@pytest.mark.parametrize(
    ("said", "atom"),
    [
        ("see /home/me/src/main.py now", "Psrc/main.py"),
        ("https://example.org/a/b/page.html", "Pb/page.html"),
        ("open main.py please", "Fmain.py"),
        ("call read_file first", "Iread_file"),
        ("the getUserName method", "IgetUserName"),
        ("version 3.11.7 it is", "N3.11.7"),
        ("exactly 4711 of them", "N4711"),
        ("commit deadbeef1 broke it", "Hdeadbeef1"),
        ("   17→    return the sum of both values\n", "Lreturn the sum of both values"),
        ("12: \treturn  the sum of   both values", "Lreturn the sum of both values"),
        ("退款必须在十四天以内提出", "L退款必须在十四天以内提出"),
        ("返金は十四日以内に請求する", "L返金は十四日以内に請求する"),
        ("ต้องขอเงินคืนภายในสิบสี่วัน", "Lต้องขอเงินคืนภายในสิบสี่วัน"),
        ("환불은 십사일 이내에 요청한다", "L환불은 십사일 이내에 요청한다"),
        ("ការសងប្រាក់វិញត្រូវស្នើសុំ", "Lការសងប្រាក់វិញត្រូវស្នើសុំ"),
        ("请先修改src/app/main.py文件", "Papp/main.py"),
        ("请先修改server.py文件", "Fserver.py"),
        ("main.pyを開く", "Fmain.py"),
        ("说明在docs/说明.md里", "Pdocs/说明.md"),
        ("客户编号4711的合同", "N4711"),
        ("提交deadbeef1之后失败", "Hdeadbeef1"),
        ("调用read_file函数", "Iread_file"),
    ],
)
def test_a_text_refers_by_paths_names_numbers_hashes_and_lines(said, atom):
    assert atom in atoms(said)


@pytest.mark.parametrize(
    "said", ["", "ok", "in 2024 I saw 5000", "word " * 3, "plain words only", "好的", "2024年"]
)
def test_small_talk_round_numbers_and_years_refer_to_nothing(said):
    assert not atoms(said)


def test_a_long_line_is_known_by_its_beginning():
    line = "many words in one line " * 20

    assert atoms(line + "and an end") == atoms(line + "or another")


def test_a_path_is_known_by_its_last_two_segments_however_it_is_spelled():
    assert (
        path_atom("/a/b/src/x.py")
        == path_atom("./src/x.py")
        == path_atom("src/x.py:")
        == "Psrc/x.py"
    )
    assert path_atom("src") is None
    assert path_atom("a/b") is None


def test_endless_runs_of_one_character_take_linear_time():
    for character in "/.-~a":
        assert "Psrc/main.py" in atoms(f"{character * 200_000} src/main.py")


def test_lines_and_hashes_weigh_more_than_names_and_numbers():
    assert (
        weight("Lsome line")
        == weight("Habcdef1")
        > weight("Iread_file")
        == weight("Fa.py")
        == weight("N123")
    )


def test_a_call_says_the_leaves_of_its_input_with_their_lines():
    call = tool_use(
        "t",
        "edit",
        {"path": "src/a.py", "edits": [{"old": "first line\nsecond line"}], "n": 17, "b": True},
    )

    assert content_text(call) == "src/a.py\nfirst line\nsecond line\n17"


def test_a_call_with_an_input_nested_very_deep_still_says_its_leaves():
    nested: object = "src/main.py"
    for _ in range(100_000):
        nested = [nested]

    assert content_text(tool_use("t", "edit", {"path": nested})) == "src/main.py"


def test_a_result_says_its_texts_and_thinking_says_nothing_to_others():
    picture = {"type": "image", "source": {"type": "base64", "data": "QUJD"}}

    assert (
        content_text(tool_result("t", [text("one"), picture, text("two")])) == "one\n[image]\ntwo"
    )
    assert content_text(tool_result("t", None)) == ""
    assert content_text(thinking("read_file")) == ""


def test_a_message_refers_by_all_its_blocks():
    index = AtomIndex()
    message = assistant("see read_file", tool_use("t", "bash", {"command": "cat src/main.py"}))

    assert index.message(message) >= {"Iread_file", "Psrc/main.py", "Fmain.py"}
    assert index.message(user("see read_file")) == {"Iread_file"}


@settings(max_examples=settings().max_examples // 10)
@given(histories(2))
def test_an_index_says_what_the_texts_say(history: list[Message]):
    index = AtomIndex()

    for message in history:
        assert index.message(message) == index.message(message) == AtomIndex().message(message)


@given(st.text())
def test_no_text_makes_it_fail_and_every_atom_has_a_weight(said: str):
    assert all(atom[0] in WEIGHTS and atom[1:] for atom in atoms(said))


@given(st.text(), st.text())
def test_a_text_of_two_parts_says_what_its_parts_say(one: str, two: str):
    assert {a for a in atoms(one) if a[0] == "L"} <= atoms(f"{one}\n{two}")
