"""``ctxpipe demo``: an agent that reads files, without a model."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import pytest

from ctxpipe import SettingsError
from ctxpipe.lab import demo


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Forty files of source, one of them hidden and one of them no text."""
    for number in range(40):
        lines = [f"def handler_{number}_{line}(request): ..." for line in range(300)]
        (tmp_path / f"part_{number:02}.py").write_text("\n".join(lines))
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "key.py").write_text("KEY = 1")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    return tmp_path


def test_the_demo_prints_a_row_of_tokens_for_some_turns_and_their_sum(folder, capsys):
    demo.demo(folder)

    said = capsys.readouterr().out
    rows = re.findall(r"^ +(\d+|in all) +([\d,]+) +([\d,]+)$", said, re.MULTILINE)
    turns = [turn for turn, _, _ in rows]
    assert said.startswith("An agent reads 40 files,")
    assert turns == ["5", "10", "15", "20", "25", "30", "35", "40", "in all"]
    for _, with_it, without in rows:
        assert int(with_it.replace(",", "")) < int(without.replace(",", "")) / 2


def test_the_requests_of_the_demo_are_valid_and_its_history_is_complete(folder, capsys):
    demo.demo(folder)

    said = capsys.readouterr().out
    assert "break a rule of the API: 0\n" in said
    assert "the complete history can be read back: True\n" in said


def test_the_demo_shows_a_placeholder_and_a_search_in_its_file(folder, capsys):
    demo.demo(folder, folder / "kept")

    said = capsys.readouterr().out
    [path] = re.findall(r"^\[Tool result offloaded to file: (.+)\]$", said, re.MULTILINE)
    assert "handler_0_299" in Path(path).read_text()
    assert "line 2, offset 30: def handler_0_1(request): ..." in said


def test_a_storage_that_cannot_be_a_folder_is_refused_before_any_turn(folder, capsys):
    with pytest.raises(SettingsError, match=r"part_00\.py"):
        demo.demo(folder, folder / "part_00.py")

    assert capsys.readouterr().out == ""


def test_the_demo_leaves_no_files_by_default(folder, tmp_path, capsys, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    demo.demo(folder)
    assert not list(temporary.iterdir())

    demo.demo(folder, tmp_path / "kept")
    assert list((tmp_path / "kept" / "demo").glob("*.md"))
    assert f"The files are in {tmp_path / 'kept'}." in capsys.readouterr().out


def test_a_few_short_files_are_not_offloaded(tmp_path, capsys):
    (tmp_path / "a.md").write_text("short")

    demo.demo(tmp_path)
    assert "search_offloaded" not in capsys.readouterr().out


def test_a_folder_without_text_files_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="no text file in it"):
        demo.demo(tmp_path)


def test_a_storage_that_cannot_be_created_is_refused_by_its_option(folder, tmp_path):
    file = tmp_path / "file"
    file.touch()

    with pytest.raises(
        SettingsError, match=r"--storage: the folder \S+file.texts cannot be created"
    ):
        demo.demo(folder, file / "texts")
