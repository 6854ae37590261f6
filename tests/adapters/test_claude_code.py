"""The hook as Claude Code starts it, and the settings that say so."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from readme import command_of, reader_environment

from ctxpipe.adapters.claude_code import install, main, uninstall
from ctxpipe.errors import SettingsError
from ctxpipe.placeholders.placeholders import any_reference

LONG = "a long line of output\n" * 400
UNNEEDED = {"anyio", "anthropic", "asyncio", "genai_prices", "httpx2", "opentelemetry", "psycopg"}
UNNEEDED |= {"redis", "regex", "rich", "sqlite3", "ssl", "tenacity", "tiktoken", "typer"}
NEEDED = {
    "__main__",
    "_json",
    "_lazy",
    "_logs",
    "_moved",
    "_text",
    "_threads",
    "_values",
    "adapters",
    "errors",
}
NEEDED |= {"messages", "placeholders", "providers", "settings", "storage"}
COMMAND = ["/usr/bin/python3", "-m", "ctxpipe", "claude-code", "hook"]


def run(*arguments: str, stdin: bytes = b"", folder: Path | None = None) -> Any:
    environment = {"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]}
    return subprocess.run(
        [sys.executable, "-m", "ctxpipe", "claude-code", *arguments],
        input=stdin,
        capture_output=True,
        check=False,
        cwd=folder or ROOT,
        env=environment,
    )


def event(folder: Path, response: object, **fields: Any) -> bytes:
    told = {
        "session_id": "job",
        "tool_use_id": "toolu_1",
        "cwd": str(folder),
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "seq 1 400"},
        "tool_response": response,
        **fields,
    }
    return json.dumps(told).encode()


def hook(folder: Path, response: object, **fields: Any) -> Any:
    """What the hook has Claude Code see instead of *response*; None: the same."""
    done = run("hook", stdin=event(folder, response, **fields))
    assert done.returncode == 0
    if not done.stdout:
        return None
    answer = json.loads(done.stdout)["hookSpecificOutput"]
    assert answer["hookEventName"] == "PostToolUse"
    return answer["updatedToolOutput"]


# The hook -----------------------------------------------------------------------------------------


def test_a_long_output_goes_to_a_file_and_the_rest_of_the_result_stays(tmp_path):
    response = {"stdout": LONG, "stderr": "", "interrupted": False, "isImage": False}

    seen = hook(tmp_path, response)

    path = tmp_path / ".ctxpipe" / "job" / "toolu_1.md"
    assert any_reference(seen["stdout"]) == str(path)
    assert path.read_text() == LONG
    assert {**seen, "stdout": LONG} == response


@pytest.mark.parametrize(
    "response", [{"stdout": "short"}, {"type": "image", "data": LONG}, "short", None, 5, []]
)
def test_what_is_short_or_no_text_stays(tmp_path, response: object):
    assert hook(tmp_path, response) is None
    assert not (tmp_path / ".ctxpipe").exists()


def test_each_long_text_has_a_file_of_its_own(tmp_path):
    response = [{"type": "text", "text": LONG}, {"type": "text", "text": LONG * 2}]

    seen = hook(tmp_path, response, tool_name="mcp__git__log")

    files = sorted((tmp_path / ".ctxpipe" / "job").glob("*.md"))
    assert [any_reference(part["text"]) for part in seen] == [str(files[1]), str(files[0])]


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_name": "mcp__ctxpipe__read_offloaded"},
        {"tool_input": {"command": "cat .ctxpipe/job/toolu_0.md"}},
        {"hook_event_name": "PreToolUse"},
    ],
    ids=str,
)
def test_what_was_read_back_stays(tmp_path, fields):
    assert hook(tmp_path, {"stdout": LONG}, **fields) is None


@pytest.mark.parametrize("stdin", [b"", b"{", b"[]", b"null", b'{"tool_response": {"a": 1}}'])
def test_a_broken_event_never_fails_the_call(tmp_path, stdin: bytes):
    done = run("hook", stdin=stdin, folder=tmp_path)

    assert (done.returncode, done.stdout) == (0, b"")


def test_a_folder_that_cannot_be_written_to_never_fails_the_call(tmp_path):
    (tmp_path / ".ctxpipe").write_text("a file is in the way")

    done = run("hook", stdin=event(tmp_path, {"stdout": LONG}))

    assert (done.returncode, done.stdout) == (0, b"")
    assert LONG[:20].encode() not in done.stderr


def test_hostile_ids_stay_below_the_root(tmp_path):
    seen = hook(tmp_path, {"stdout": LONG}, session_id="../../up", tool_use_id="../../x")

    path = any_reference(seen["stdout"])
    assert path is not None
    assert Path(path).resolve().is_relative_to((tmp_path / ".ctxpipe").resolve())


def test_it_imports_nothing_that_it_does_not_need(tmp_path):
    code = (
        "import sys; sys.argv = ['ctxpipe', 'claude-code', 'hook']\n"
        "from ctxpipe.__main__ import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=event(tmp_path, {"stdout": LONG}),
        capture_output=True,
        check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
    )

    answer, modules = done.stdout.decode().split("\n")[:2]
    assert "offloaded" in answer
    imported = set(modules.split())
    assert "ctxpipe.storage.local" in imported
    packages = {name.partition(".")[0] for name in imported}
    assert not packages & UNNEEDED
    ours = {name.removeprefix("ctxpipe.") for name in imported if name.startswith("ctxpipe.")}
    assert {name.partition(".")[0] for name in ours} <= NEEDED
    storages = {"memory", "objects", "postgres", "redis", "secrets", "sqlite"}
    assert not ours & {f"storage.{name}" for name in storages}


# The settings -------------------------------------------------------------------------------------


def read(settings: Path) -> Any:
    return json.loads(settings.read_text())


def test_install_adds_the_hook_and_keeps_a_copy(tmp_path):
    settings = tmp_path / "settings.json"
    other = {"matcher": "Edit", "hooks": [{"type": "command", "command": "format"}]}
    before = {"model": "opus", "hooks": {"PostToolUse": [other], "Stop": []}}
    settings.write_text(json.dumps(before))
    settings.chmod(0o600)

    assert install(str(settings), COMMAND)

    groups = read(settings)["hooks"]["PostToolUse"]
    assert groups[0] == other
    assert groups[1]["hooks"][0]["command"] == "/usr/bin/python3 -m ctxpipe claude-code hook"
    assert read(tmp_path / "settings.json.before-ctxpipe") == before
    assert stat.S_IMODE(settings.stat().st_mode) == 0o600


def test_installing_twice_is_installing_once(tmp_path):
    settings = tmp_path / ".claude" / "settings.json"

    assert install(str(settings), COMMAND)
    assert not install(str(settings), COMMAND)
    assert install(str(settings), [*COMMAND, "--min-chars", "9000"])

    [group] = read(settings)["hooks"]["PostToolUse"]
    assert len(group["hooks"]) == 1


def test_uninstall_leaves_what_was_there_before(tmp_path):
    settings = tmp_path / "settings.json"
    before = {"model": "opus", "hooks": {"Stop": []}}
    settings.write_text(json.dumps(before))

    install(str(settings), COMMAND)
    assert uninstall(str(settings))

    assert read(settings) == before
    assert not uninstall(str(settings))


def test_a_hook_of_somebody_else_in_our_group_stays(tmp_path):
    settings = tmp_path / "settings.json"
    install(str(settings), COMMAND)
    mixed = read(settings)
    mixed["hooks"]["PostToolUse"][0]["hooks"].append({"type": "command", "command": "other"})
    settings.write_text(json.dumps(mixed))

    uninstall(str(settings))

    [group] = read(settings)["hooks"]["PostToolUse"]
    assert [entry["command"] for entry in group["hooks"]] == ["other"]


@pytest.mark.parametrize("text", ["{", "[]", '{"hooks": 5}', '{"hooks": {"PostToolUse": {}}}'])
def test_settings_that_cannot_be_read_are_not_changed(tmp_path, text):
    settings = tmp_path / "settings.json"
    settings.write_text(text)

    with pytest.raises(SettingsError, match="not changed"):
        install(str(settings), COMMAND)

    assert settings.read_text() == text


def test_the_command_installs_what_claude_code_can_run(tmp_path, capsys):
    settings = tmp_path / "settings.json"

    assert main(["install", "--settings", str(settings)]) == 0
    assert main(["install", "--settings", str(settings)]) == 0

    first, second = capsys.readouterr().out.splitlines()
    assert first == f"{settings}: the hook was added"
    assert second == f"{settings}: the hook is there already"
    command = read(settings)["hooks"]["PostToolUse"][0]["hooks"][0]["command"]
    done = subprocess.run(
        ["sh", "-c", command],
        input=event(tmp_path, {"stdout": LONG}),
        capture_output=True,
        check=True,
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
    )
    assert b"offloaded" in done.stdout


def test_a_root_that_is_a_file_is_refused_and_nothing_is_installed(tmp_path, capsys):
    settings = tmp_path / "settings.json"
    (tmp_path / "file").touch()

    with pytest.raises(SystemExit):
        main(["install", "--settings", str(settings), "--root", str(tmp_path / "file")])

    assert "is a file; give a folder" in capsys.readouterr().err
    assert not settings.exists()


def test_a_root_that_cannot_be_written_is_refused_before_the_settings(read_only_folder, capsys):
    settings = read_only_folder / "settings.json"

    with pytest.raises(SystemExit):
        main(["install", "--settings", str(settings), "--root", str(read_only_folder / "new")])

    assert "may not write to" in capsys.readouterr().err


def test_the_program_of_the_page_installs_a_hook_that_offloads(tmp_path):
    settings = reader_environment()
    subprocess.run(command_of("claude-code"), cwd=tmp_path, env=settings, check=True)

    installed = read(tmp_path / ".claude" / "settings.json")
    command = installed["hooks"]["PostToolUse"][0]["hooks"][0]["command"]
    done = subprocess.run(
        ["sh", "-c", command],
        input=event(tmp_path, {"stdout": LONG}),
        capture_output=True,
        check=True,
        cwd=tmp_path,
        env=settings,
    )

    assert b"offloaded" in done.stdout
    [file] = (tmp_path / ".ctxpipe").rglob("*.md")
    assert file.read_text() == LONG
