"""Files come back from disk as they are now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from histories import conversation, step, view

from ctxpipe import MemoryStorage, presets
from ctxpipe.errors import SettingsError, StorageError
from ctxpipe.functions import restore_files
from ctxpipe.messages import Message
from ctxpipe.stages.compact.stage import Restore
from ctxpipe.storage.files import FileText, LocalFiles
from ctxpipe.storage.secrets import is_secret


def reads(*paths: str) -> list[Message]:
    return conversation(*(view(f"t{number}", path, "old") for number, path in enumerate(paths)))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    for name in "abcdefg":
        (root / name).write_text(f"content {name}")
    (tmp_path / "outside").write_text("the outside")
    return root


async def test_without_a_folder_files_are_read_below_the_current_one(project, monkeypatch):
    monkeypatch.chdir(project)

    assert [file.path for file in (await restore_files(reads("a"))).files] == ["a"]


async def test_five_files_are_restored_by_default(project):
    found = await restore_files(reads(*"abcdefg"), work_dir=project)

    assert [file.path for file in found.files] == ["g", "f", "e", "d", "c"]


async def test_the_limits_come_from_the_environment(project, monkeypatch):
    monkeypatch.setenv("MAX_RESTORE_FILES", "2")
    monkeypatch.setenv("MAX_RESTORE_TOKENS_PER_FILE", "40")
    monkeypatch.setenv("MAX_RESTORE_TOKENS_TOTAL", "50")
    (project / "a").write_text("word " * 45)
    (project / "b").write_text("word " * 30)
    (project / "c").write_text("word " * 30)

    paths = [f.path for f in (await restore_files(reads("a", "b", "c"), work_dir=project)).files]
    assert paths == ["c"]
    assert [f.path for f in (await restore_files(reads("b", "a"), work_dir=project)).files] == ["b"]


async def test_a_file_over_its_limit_is_skipped_with_a_warning_and_handed_on(project):
    (project / "b").write_text("word " * 100)

    found = await restore_files(reads("a", "b"), work_dir=project, max_restore_tokens_per_file=50)

    assert [file.path for file in found.files] == ["a"]
    assert [file.path for file in found.unfit] == ["b"]
    assert found.warnings == ("'b' is not restored: its 101 tokens exceed 50",)


async def test_nothing_is_restored_if_each_file_is_over_its_limit(project):
    found = await restore_files(reads(*"abc"), work_dir=project, max_restore_tokens_per_file=1)

    assert found.files == ()
    assert found.messages == []
    assert len(found.warnings) == 3


async def test_two_names_of_one_file_are_one_file_and_one_place(project):
    (project / "alias").symlink_to("b")

    found = await restore_files(
        reads("a", "b", "./b", "alias"), work_dir=project, max_restore_files=2
    )

    assert [file.path for file in found.files] == ["alias", "a"]


async def test_files_that_changed_or_went_since_they_were_shown_are_marked(project):
    history = conversation(
        view("1", "a", "content a"), view("2", "b", "other"), view("3", "gone", "was here")
    )

    found = await restore_files(history, work_dir=project)

    assert [(file.path, file.changed) for file in found.files] == [("b", True), ("a", False)]
    assert found.deleted == ("gone",)


async def test_every_hostile_path_has_its_warning_and_the_valid_one_is_restored(project, caplog):
    os.mkfifo(project / "pipe")
    (project / "folder").mkdir()
    (project / "link").symlink_to("../outside")
    (project / "device").symlink_to("/dev/zero")
    (project / "binary").write_bytes(b"\xff\0")
    (project / ".env").write_text("TOKEN=the outside")
    with (project / "huge").open("wb") as file:
        file.truncate(5 * 10**9)
    hostile = [
        "../outside",
        str(project.parent),
        "/etc/passwd",
        "/dev/zero",
        "pipe",
        "folder",
        "link",
        "device",
        "binary",
        ".env",
        "huge",
        "gone",
        "a\0b",
        "x" * 400,
        "\udcff",
        "../project-evil/x",
    ]

    found = await restore_files(
        reads("a", *hostile),
        work_dir=project,
        max_restore_files=99,
        files=LocalFiles(project, deny=is_secret),
    )

    assert [file.path for file in found.files] == ["a"]
    assert len(found.warnings) == len(hostile)
    assert all(
        repr(path) in warning
        for path, warning in zip(reversed(hostile), found.warnings, strict=True)
    )
    assert len(caplog.messages) == len(hostile)
    assert "the outside" not in "".join(found.warnings) + caplog.text


async def test_the_reader_is_asked_for_no_more_than_its_tokens_could_take():
    asked: list[tuple[str, int]] = []

    class Elsewhere:
        async def read(self, path: str, /, max_bytes: int) -> FileText:
            asked.append((path, max_bytes))
            if path == "b":
                raise StorageError("not there")
            return FileText(path, "far away")

    found = await restore_files(reads("a", "b"), files=Elsewhere())

    assert asked == [("b", 320_000), ("a", 320_000)]
    assert [file.text for file in found.files] == ["far away"]
    assert found.warnings == ("not restored: not there",)


async def test_other_reading_tools_are_a_setting(project):
    history = conversation(
        step("1", "Read", {"file_path": "a"}),
        step("3", "sh", {"cmd": "cat c"}),
    )

    found = await restore_files(
        history,
        work_dir=project,
        tools={"Read": "file_path"},
        shell=True,
    )

    assert [file.path for file in found.files] == ["c", "a"]


# Settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["missing", "a file", "below a file"])
def test_a_work_dir_that_is_no_folder_is_refused_when_it_is_given(tmp_path, kind):
    (tmp_path / "file").write_text("x")
    paths = {"missing": "nope/nope", "a file": "file", "below a file": "file/nope"}
    path = tmp_path / paths[kind]
    storage = MemoryStorage()

    for make in (
        lambda: Restore(work_dir=path),
        lambda: Restore(work_dir=str(path)),
        lambda: Restore(files=LocalFiles(path)),
        lambda: presets.coding_agent(storage, work_dir=path),
        lambda: presets.coding_agent(storage, work_dir=path, old_exchanges="lines"),
    ):
        with pytest.raises(SettingsError, match="which is not a folder; give the folder of the"):
            make()
