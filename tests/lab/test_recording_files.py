"""Files and folders as arguments of the commands."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from histories import assistant, conversation, user

from ctxpipe.errors import TranscriptError
from ctxpipe.lab.recording_files import recordings
from ctxpipe.messages import compact_json

TALK = compact_json(conversation(user("Go."), assistant("Done.")))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {
        "b.json": TALK,
        "a.jsonl": TALK,
        "deep/er/C.JSONL": TALK,
        "deep/package.json": "{}",
        "notes.md": "# Notes",
        ".git/state.json": TALK,
        ".hidden.json": TALK,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path


def names(folder: Path, files: Iterable[str]) -> list[str]:
    return [Path(file).relative_to(folder).as_posix() for file in files]


def test_a_folder_is_searched_recursively_without_hidden_files(folder):
    found = recordings([str(folder)])
    assert names(folder, found.files) == ["a.jsonl", "b.json", "deep/er/C.JSONL"]


def test_skipped_files_of_a_folder_are_reported_with_the_reason(folder):
    found = recordings([str(folder)])
    assert names(folder, found.unreadable) == ["deep/package.json"]
    assert names(folder, found.others) == ["notes.md"]
    first, reason = found.describe_skipped().splitlines()
    assert first == (
        "skipped: 1 file without a conversation that can be read, 1 file neither JSON nor JSONL"
    )
    assert "package.json" in reason


def test_only_the_first_reasons_of_many_are_reported(tmp_path):
    (tmp_path / "a.json").write_text(TALK, "utf-8")
    for number in range(8):
        (tmp_path / f"empty_{number}.json").touch()
    told = recordings([str(tmp_path)]).describe_skipped().splitlines()
    assert len(told) == 1 + 5 + 1
    assert told[-1].strip() == "and 3 more"


def test_a_file_that_is_named_twice_is_read_once_and_the_order_is_kept(folder):
    one = str(folder / "b.json")
    found = recordings(["-", one, str(folder), "-"])
    assert found.files[:2] == ["-", one]
    assert len(found.files) == len(set(found.files)) == 4


def test_a_missing_file_is_left_for_the_reader_to_refuse():
    assert recordings(["no/such.jsonl"]).files == ["no/such.jsonl"]


def test_a_folder_without_a_recording_is_refused_with_its_contents(tmp_path):
    with pytest.raises(TranscriptError, match="holds no recording that can be read; it is empty"):
        recordings([str(tmp_path)])
    (tmp_path / "a.txt").write_text("x", "utf-8")
    with pytest.raises(TranscriptError, match="1 file neither JSON nor JSONL"):
        recordings([str(tmp_path)])
