"""A hook for Claude Code: long tool results go to files before they enter its history.

``ctxpipe claude-code install`` adds it to the settings, ``uninstall`` takes it out again. Only what
is new is ever replaced, so the prompt cache and thinking are unharmed. The hook is a process for
each tool call: it imports only what it needs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .._values import JsonDict, JsonObject
from ..errors import CtxpipeError, SettingsError
from ..providers.agent_tools import READ_BACK_TOOLS

__all__ = ["install", "main", "new_output", "uninstall"]

TOOLS = "Bash|BashOutput|Grep|Glob|WebFetch|mcp__.*"
"""Tools whose results are only text: what Read, Edit and Write return, Claude Code looks into."""
ROOT = ".ctxpipe"
MIN_CHARS = 4_000
SECONDS = 10  # after which Claude Code goes on without the hook
EVENT = "PostToolUse"
MARK = "ctxpipe claude-code hook"
COPY = ".before-ctxpipe"
FOLDER = ".claude"
FILE = "settings.json"
# What is no text of the tool's result, or may not be changed.
KEPT = frozenset({"base64", "data", "filePath", "file_path", "media_type", "mimeType", "type"})

# The hook -----------------------------------------------------------------------------------------


def new_output(event: JsonObject, root: str, min_chars: int) -> object | None:
    """What replaces the result that *event* tells of; None where it stays as it is.

    Each of its texts of *min_chars* characters or more is written to a file below *root*, and a
    placeholder with the path replaces it. Raises StorageError when a file cannot be written.
    """
    if event.get("hook_event_name", EVENT) != EVENT or _is_read_back(event, root):
        return None
    names = _names(event)

    def point(text: str) -> str:
        return _move(root, next(names), text) if len(text) >= min_chars else text

    output = event.get("tool_response")
    pointing = _map_texts(output, point)
    return None if pointing == output else pointing


def _move(root: str, key: str, text: str) -> str:
    """The placeholder of *text*, which is moved to a file."""
    from ..placeholders.placeholders import DIRECT, Preview, placeholder
    from ..storage import LocalStorage

    [path] = LocalStorage(root).write_blocking([(key, text)])
    return placeholder(DIRECT, path, text, Preview())


def _is_read_back(event: JsonObject, root: str) -> bool:
    """Whether the tool has read what was offloaded: that must not be offloaded again."""
    if str(event.get("tool_name", "")).endswith(tuple(READ_BACK_TOOLS)):
        return True
    asked = json.dumps(event.get("tool_input"), ensure_ascii=False)
    return root in asked or os.path.basename(root) in asked


def _names(event: JsonObject) -> Iterator[str]:
    """The keys below which the texts of *event* are stored, one after the other."""
    from ..placeholders.names import safe_name, session_folder

    session = str(event.get("session_id") or "unnamed")
    call = str(event.get("tool_use_id") or "result")
    name = f"{session_folder(session[:1000])}/{safe_name(call)}"
    yield f"{name}.md"
    for number in itertools.count(1):
        yield f"{name}-{number}.md"


def _map_texts(value: object, change: Callable[[str], str]) -> object:
    """A copy of *value* in which *change* was asked about each text that may leave, in order."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            key: inner if key in KEPT else _map_texts(inner, change) for key, inner in value.items()
        }
    return [_map_texts(inner, change) for inner in value] if isinstance(value, list) else value


def _answer(raw: bytes, root: str, min_chars: int) -> str:
    """What the hook prints; "" leaves the result as it is. Nothing is ever raised."""
    try:
        event = json.loads(raw)
        folder = os.path.join(str(event.get("cwd") or os.getcwd()), root)
        output = new_output(event, os.path.abspath(folder), min_chars)
        if output is None:
            return ""
        answer = {"hookEventName": EVENT, "updatedToolOutput": output}
        return json.dumps({"hookSpecificOutput": answer})
    except Exception as error:  # noqa: BLE001  a tool call must not fail because of us
        name = type(error).__name__
        sys.stderr.write(f"ctxpipe: the result stays as it is: {name}\n")
        return ""


# The settings -------------------------------------------------------------------------------------


def install(settings: str, command: Sequence[str]) -> bool:
    """Add the hook *command* to the file *settings*; whether that changed anything.

    The file as it was is kept beside it. Raises SettingsError when it holds no JSON object.
    """
    before = _read(settings)
    hooks = _without_ours(before)
    entry = {"type": "command", "command": shlex.join(command), "timeout": SECONDS}
    ours = {"matcher": TOOLS, "hooks": [entry]}
    events = dict(hooks.get("hooks") or {})
    others = events.get(EVENT) or []
    events[EVENT] = [*others, ours]
    return _save(settings, before, {**hooks, "hooks": events})


def uninstall(settings: str) -> bool:
    """Take the hook out of the file *settings*; whether that changed anything.

    Raises SettingsError when it holds no JSON object.
    """
    before = _read(settings)
    return _save(settings, before, _without_ours(before))


def _read(settings: str) -> JsonDict:
    try:
        with open(settings, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return {}
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{settings} is no JSON ({error}); it was not changed") from error
    hooks = value.get("hooks", {}) if isinstance(value, dict) else None
    if not (isinstance(hooks, dict) and isinstance(hooks.get(EVENT, []), list)):
        raise SettingsError(f"{settings} has not the form of Claude Code; it was not changed")
    return dict(value)


def _without_ours(settings: JsonObject) -> JsonDict:
    """*settings* without our hook, and without what only held it."""
    events = dict(settings.get("hooks") or {})
    groups = events.get(EVENT) or []
    kept: list[Any] = []
    for group in groups:
        hooks = group.get("hooks") if isinstance(group, dict) else None
        others = hooks
        if isinstance(hooks, list):
            others = [hook for hook in hooks if not _is_ours(hook)]
        if others == hooks:
            kept.append(group)
        elif others:
            kept.append({**group, "hooks": others})
    rest = dict(settings)
    if kept == groups:
        return rest
    events.pop(EVENT)
    if kept:
        events[EVENT] = kept
    rest.pop("hooks")
    if events:
        rest["hooks"] = events
    return rest


def _is_ours(hook: object) -> bool:
    return isinstance(hook, dict) and MARK in str(hook.get("command"))


def _save(settings: str, before: JsonObject, after: JsonObject) -> bool:
    """Write *after* to the file *settings*, whole or not at all, and keep a copy of *before*."""
    if after == before:
        return False
    target = os.path.realpath(settings)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    temporary = f"{target}.{os.getpid()}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(json.dumps(after, indent=2, ensure_ascii=False) + "\n")
    if os.path.exists(target):
        import shutil

        shutil.copy2(target, target + COPY)
        shutil.copymode(target, temporary)
    os.replace(temporary, target)
    return True


# The command --------------------------------------------------------------------------------------


def main(arguments: Sequence[str]) -> int:
    """The commands ``ctxpipe claude-code hook | install | uninstall``."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.action == "hook":
        sys.stdout.write(_answer(sys.stdin.buffer.read(), given.root, given.min_chars))
        return 0
    settings = given.settings
    if given.user:
        settings = os.path.join(os.path.expanduser("~"), FOLDER, FILE)
    try:
        if given.action == "install":
            changed = install(settings, _command(given.root, given.min_chars))
        else:
            changed = uninstall(settings)
    except (CtxpipeError, OSError) as error:
        parser.error(str(error))
    sys.stdout.write(f"{settings}: {'changed' if changed else 'as it should be already'}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ctxpipe claude-code",
        description="Put Claude Code's long tool results into files before they enter its history.",
    )
    parser.add_argument(
        "action",
        choices=["install", "uninstall", "hook"],
        help="add the hook to the settings; take it out again; run it, as Claude Code does",
    )
    parser.add_argument(
        "--root", default=ROOT, help="where the files go, below the project; default: %(default)s"
    )
    parser.add_argument(
        "--min-chars",
        type=int,
        default=MIN_CHARS,
        help="characters of the shortest text that goes to a file; default: %(default)s",
    )
    parser.add_argument(
        "--settings",
        default=os.path.join(FOLDER, FILE),
        help="the file of settings; default: %(default)s",
    )
    parser.add_argument(
        "--user", action="store_true", help="the settings of all your projects instead"
    )
    return parser


def _command(root: str, min_chars: int) -> list[str]:
    """What Claude Code runs; the same Python, whatever its path is then."""
    return [sys.executable, "-m", *MARK.split(), "--root", root, "--min-chars", str(min_chars)]
