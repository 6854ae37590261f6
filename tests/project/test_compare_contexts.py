"""The comparison of files by ``scripts/compare_contexts.py --bytes``."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.compare_contexts import first_difference


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders with the same journal and the same archive."""
    for name in ("old", "new"):
        session = tmp_path / name / "session"
        session.mkdir(parents=True)
        (session / "journal.jsonl").write_bytes(b'{"a": 1}\n{"b": 2}\n')
        (session / "archive.json").write_bytes(b"[]\n")
    return tmp_path / "old", tmp_path / "new"


def test_equal_folders_have_no_difference(folders):
    assert first_difference(*folders) == ""


def test_a_changed_byte_is_reported_with_its_file_and_line(folders):
    _, new = folders
    (new / "session/journal.jsonl").write_bytes(b'{"a": 1}\n{"b": 3}\n')

    difference = first_difference(*folders)

    assert difference.startswith("session/journal.jsonl differs in line 2, at byte 15\n")


@pytest.mark.parametrize("side", [0, 1], ids=["old", "new"])
def test_a_file_that_only_one_version_writes_is_a_difference(folders, side: int):
    (folders[side] / "session/another.json").touch()

    version = ("old", "new")[side]
    assert first_difference(*folders) == (
        f"session/another.json: only the {version} version writes this file"
    )
