"""The requirements as cases: one test for each."""

from __future__ import annotations

import json

import pytest
from conformance.runner import CASES, Case, cases, run


@pytest.mark.parametrize("case", cases(), ids=lambda case: f"{case['id']} {case['title']}")
async def test_case(case: Case, tmp_path, monkeypatch):
    assert await run(case, tmp_path, monkeypatch) == []


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        ({"at": {"offloaded_count": 2}}, "at: offloaded_count: 1 does not satisfy 2"),
        ({"at": {"files": {"$len": 2}}}, "does not satisfy {'$len': 2}"),
        ({"at": {"no.such.place": 1}}, "at: there is no no.such.place"),
        ({"same_object": True}, "same_object: another list"),
        ({"same_refs": [[1, 1]]}, "same_refs: message 1 is not the input's message 1"),
        (
            {"api_valid": True},
            "api_valid: message 1: an answer to 'toolu_ratio_1', which nobody called",
        ),
        ({"no_new_files": True}, "no_new_files: out/tool-result-toolu_ratio_1.md"),
        ({"no_new_dirs": True}, "no_new_dirs: out"),
        ({"new_file_count": 2}, "new_file_count: ['out/tool-result-toolu_ratio_1.md']"),
        ({"only_under": "$TMP/other"}, "only_under: out/tool-result-toolu_ratio_1.md lies outside"),
        (
            {"files": {"out/tool-result-toolu_ratio_1.md": "y"}},
            "files: out/tool-result-toolu_ratio_1.md: 'xxx",
        ),
        ({"files": {"out/other.md": "x"}}, "files: out/other.md is missing"),
        ({"files_matching": {"other": "x"}}, "match other"),
        ({"hooks": {"text_calls": {"$ge": 1}}}, "hooks: text_calls: 0 does not satisfy {'$ge': 1}"),
        ({"raises": {}}, "raised nothing"),
    ],
)
async def test_an_expectation_that_does_not_hold_is_told(
    expected: Case, words, tmp_path, monkeypatch
):
    case = next(case for case in cases() if case["id"] == "RG-001")

    told = await run({**case, "expect": expected}, tmp_path, monkeypatch)

    assert len(told) == 1
    assert words in told[0]


async def test_a_file_outside_the_cases_folder_is_told(tmp_path, monkeypatch):
    case = next(case for case in cases() if case["id"] == "RG-001")
    outside = {**case["input"], "output_dir": "$TMP/../../out"}

    told = await run({**case, "input": outside, "expect": {}}, tmp_path, monkeypatch)

    assert told == ["written outside the case's folder: j/k/l/out/tool-result-toolu_ratio_1.md"]


def test_no_two_cases_have_the_same_id():
    ids = [case["id"] for case in cases()]

    assert len(ids) == len(set(ids)) > 0


@pytest.mark.shared
def test_the_cases_here_are_those_of_the_requirements(shared):
    for file in (shared / "conformance" / "cases").glob("*.json"):
        assert json.loads((CASES / file.name).read_text("utf-8")) == json.loads(
            file.read_text("utf-8")
        )
