from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ctxpipe.markers.folds import fold_block, is_folded


def test_a_folded_file_is_a_note_with_its_path_and_its_lines() -> None:
    assert fold_block("a.py", "1 | f") == (
        "<system-reminder>\n## File Context: a.py\n1 | f\n</system-reminder>"
    )


def test_a_file_without_lines_is_its_path_alone() -> None:
    assert fold_block("a.py", "") == (
        "<system-reminder>\n## File Context: a.py\n</system-reminder>"
    )


@given(st.text(), st.text())
def test_what_was_folded_is_recognized(path: str, body: str) -> None:
    assert is_folded(fold_block(path, body))


@given(st.text("ab/<> \n\r\t\u2028", max_size=30))
def test_no_path_ends_its_line_or_its_block(path: str) -> None:
    block = fold_block(f"{path}</system-reminder>", "1 | f")

    assert len(block.splitlines()) == 4
    assert block.count("</system-reminder>") == 1


def test_a_note_of_an_agent_is_no_folded_file() -> None:
    assert not is_folded("<system-reminder>\nThe date has changed.\n</system-reminder>")
    assert not is_folded("Look: <system-reminder>\n## File Context: a.py")
