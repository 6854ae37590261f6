"""The comparisons of ``scripts/compare_contexts.py``: of files, journals and requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT
from recorded import NIGHTLY

from scripts.compare_contexts import (
    REQUESTS_SCRIPT,
    client_recordings,
    first_difference,
    run_version,
)
from scripts.play_requests import with_answers


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


@pytest.mark.skipif(not NIGHTLY, reason="it starts six processes, in the nightly profile")
def test_a_version_continues_its_own_journals_as_if_it_had_not_stopped():
    command = [sys.executable, "scripts/compare_contexts.py", "--journals", "--bytes"]
    command += ["--beside", ".", "--limit", "0", "--lives", "2"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ran.returncode == 0, ran.stderr
    turns, equal = (line.split()[-3:] for line in ran.stdout.splitlines()[2:4])
    assert turns == equal
    assert int(turns[0]) > 10


@pytest.mark.skipif(not NIGHTLY, reason="it starts a process for each, in the nightly profile")
@pytest.mark.parametrize(
    ("is_compacting", "mark"), [(False, b"offloaded to file"), (True, b"[Conversation compressed]")]
)
def test_recorded_requests_are_sent_with_offloaded_results_or_with_a_summary(
    tmp_path: Path, is_compacting: bool, mark: bytes
):
    recordings = {name: (recording, window) for name, recording, window in client_recordings()}
    recording, window = recordings["gemini"]
    path = tmp_path / "recording.json"
    path.write_text(json.dumps(recording), "utf-8")
    root = tmp_path / "root"

    window_arguments = [str(window)] if is_compacting else []
    run_version(ROOT, [REQUESTS_SCRIPT, path, *window_arguments], root)

    bodies = [file.read_bytes() for file in sorted(root.glob("sent/*.json"))]
    assert len(bodies) == len(recording["requests"])
    assert mark in bodies[-1]


def test_replies_of_a_request_are_replaced_in_their_order():
    body = {
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": [{"type": "text", "text": "recorded"}]},
            {"role": "assistant", "content": "a text is no list of blocks"},
            {"role": "assistant", "content": [{"type": "text", "text": "recorded"}]},
        ]
    }

    messages = with_answers(body, [["first"], ["second"]])["messages"]

    assert [message["content"] for message in messages] == [
        "go",
        ["first"],
        "a text is no list of blocks",
        ["second"],
    ]
