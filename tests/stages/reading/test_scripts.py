"""Words in every script, also where no blank separates them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.stages.reading.scripts import has_three_words, length_in_latin, separate_scripts


@pytest.mark.parametrize(
    ("text", "separated"),
    [
        ("修改server.py文件", "修改 server.py 文件"),
        ("ファイルconfig.yamlを開く", "ファイル config.yaml を開く"),
        ("server.py를 고친다", "server.py 를 고친다"),
        ("แก้ไฟล์main.goแล้ว", "แก้ไฟล์ main.go แล้ว"),
        ("កែmain.rsហើយ", "កែ main.rs ហើយ"),
        ("第4711号", "第 4711 号"),
        ("файл42", "файл 42"),
    ],
)
def test_a_name_between_words_of_another_script_is_separated_from_them(text: str, separated: str):
    assert separate_scripts(text) == separated


@pytest.mark.parametrize(
    "text", ["docs/说明.md", "plain words", "naïve_name1", "Tiếng Việt", "   17→x", "├──a.py", "…a"]
)
def test_latin_words_symbols_and_paths_stay_together(text: str):
    assert separate_scripts(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "all tests have passed",
        "测试全部通过",
        "テストはすべて成功した",
        "การทดสอบทั้งหมดผ่านแล้ว",
        "모든 테스트가 통과했다",
        "ការធ្វើតេស្តទាំងអស់បានជោគជ័យ",
        "运行pytest测试",
    ],
)
def test_a_sentence_has_three_words_in_every_script(text: str):
    assert has_three_words(text)


@pytest.mark.parametrize(
    "text", ["", "two words", "好", "通过了", "はい", "ดี", "네", "x" * 5000, "é" * 5000]
)
def test_one_or_two_words_are_not_three(text: str):
    assert not has_three_words(text)


def test_endless_words_and_separators_take_linear_time():
    for character in "é字かกх→ ":
        has_three_words(character * 300_000)
        separate_scripts(f"{character}a" * 100_000)


def test_a_character_of_chinese_japanese_or_korean_counts_for_several_letters():
    assert length_in_latin("letters") == 7
    assert length_in_latin("测试") == 6
    assert length_in_latin("テスト") == 6
    assert length_in_latin("테스트") == 6
    assert length_in_latin("ดี") == 2


@given(st.text())
def test_separating_only_adds_blanks_and_needs_to_be_done_once(text: str):
    separated = separate_scripts(text)

    assert separated.replace(" ", "") == text.replace(" ", "")
    assert separate_scripts(separated) == separated
