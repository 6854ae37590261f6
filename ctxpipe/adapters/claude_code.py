"""A hook for Claude Code that moves long tool results to files before they enter the history.

``ctxpipe claude-code install`` adds the hook to the settings, ``uninstall`` removes it. Only new
results are replaced, so the prompt cache and thinking stay valid. Each tool call starts the hook as
a process, so it imports only the modules that it needs.
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
"""Tools whose results are only text. Claude Code evaluates the results of Read, Edit and Write."""
ROOT = ".ctxpipe"
MIN_CHARS = 4_000
TIMEOUT_SECONDS = 10
"""Time after which Claude Code continues without the hook."""
EVENT = "PostToolUse"
MARK = "ctxpipe claude-code hook"
COPY = ".before-ctxpipe"
FOLDER = ".claude"
FILE = "settings.json"
UNCHANGED_FIELDS = frozenset(
    {"base64", "data", "filePath", "file_path", "media_type", "mimeType", "type"}
)
"""Fields of a result that are no text, or that must not be changed."""

# The hook -----------------------------------------------------------------------------------------


def new_output(event: JsonObject, root: str, min_chars: int) -> object | None:
    """Return the replacement for the tool result in *event*, None if the result stays unchanged.

    Each text with at least *min_chars* characters is written to a file in the folder *root* and
    replaced by a placeholder with the path.

    Raises StorageError if a file cannot be written.
    """
    if event.get("hook_event_name", EVENT) != EVENT or _is_read_back(event, root):
        return None
    keys = _storage_keys(event)

    def offload_long_text(text: str) -> str:
        return _offload(root, next(keys), text) if len(text) >= min_chars else text

    output = event.get("tool_response")
    changed_output = _change_texts(output, offload_long_text)
    return None if changed_output == output else changed_output


def _offload(root: str, key: str, text: str) -> str:
    """Write *text* to the file *key* in the folder *root*; return the placeholder."""
    from ..placeholders.placeholders import DIRECT, Preview, placeholder
    from ..storage import LocalStorage

    [path] = LocalStorage(root).write_blocking([(key, text)])
    return placeholder(DIRECT, path, text, Preview())


def _is_read_back(event: JsonObject, root: str) -> bool:
    """Return True if the tool has read offloaded content, which must not be offloaded again."""
    if str(event.get("tool_name", "")).endswith(tuple(READ_BACK_TOOLS)):
        return True
    tool_input = json.dumps(event.get("tool_input"), ensure_ascii=False)
    return root in tool_input or os.path.basename(root) in tool_input


def _storage_keys(event: JsonObject) -> Iterator[str]:
    """Yield the keys of the files for the texts in *event*, one after the other, without end."""
    from ..placeholders.names import safe_name, session_folder

    session = str(event.get("session_id") or "unnamed")
    call = str(event.get("tool_use_id") or "result")
    name = f"{session_folder(session[:1000])}/{safe_name(call)}"
    yield f"{name}.md"
    for number in itertools.count(1):
        yield f"{name}-{number}.md"


def _change_texts(value: object, change: Callable[[str], str]) -> object:
    """Return a copy of *value* with each text that may be changed replaced by *change* of it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_change_texts(element, change) for element in value]
    if not isinstance(value, Mapping):
        return value
    changed_fields: JsonDict = {}
    for key, element in value.items():
        if key in UNCHANGED_FIELDS:
            changed_fields[key] = element
        else:
            changed_fields[key] = _change_texts(element, change)
    return changed_fields


def _answer(raw: bytes, root: str, min_chars: int) -> str:
    """Return the output of the hook for the event *raw*; "" leaves the result unchanged.

    After any error, which is written to standard error, the result stays unchanged.
    """
    try:
        event = json.loads(raw)
        folder = os.path.join(str(event.get("cwd") or os.getcwd()), root)
        output = new_output(event, os.path.abspath(folder), min_chars)
        if output is None:
            return ""
        answer = {"hookEventName": EVENT, "updatedToolOutput": output}
        return json.dumps({"hookSpecificOutput": answer})
    except Exception as error:  # noqa: BLE001  a tool call must not fail because of the hook
        name = type(error).__name__
        sys.stderr.write(f"ctxpipe: the result stays unchanged: {name}\n")
        return ""


# The settings -------------------------------------------------------------------------------------


def install(settings: str, command: Sequence[str]) -> bool:
    """Add the hook *command* to the file *settings*; return True if that has changed the file.

    A copy of the previous file is kept in the same folder.

    Raises SettingsError if the file has not the form of Claude Code's settings.
    """
    before = _read(settings)
    after = _without_hook(before)
    hook = {"type": "command", "command": shlex.join(command), "timeout": TIMEOUT_SECONDS}
    group = {"matcher": TOOLS, "hooks": [hook]}
    events = dict(after.get("hooks") or {})
    other_groups = events.get(EVENT) or []
    events[EVENT] = [*other_groups, group]
    return _save(settings, before, {**after, "hooks": events})


def uninstall(settings: str) -> bool:
    """Remove the hook from the file *settings*; return True if that has changed the file.

    Raises SettingsError if the file has not the form of Claude Code's settings.
    """
    before = _read(settings)
    return _save(settings, before, _without_hook(before))


def _read(settings: str) -> JsonDict:
    """Return the content of the file *settings*; an empty object if it is missing or empty.

    Raises SettingsError if it is not JSON, or not in the form of Claude Code's settings.
    """
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
        raise SettingsError(
            f"{settings} is not valid JSON ({error}); it was not changed"
        ) from error
    hooks = value.get("hooks", {}) if isinstance(value, dict) else None
    if not (isinstance(hooks, dict) and isinstance(hooks.get(EVENT, []), list)):
        raise SettingsError(
            f"{settings} does not have the form of Claude Code's settings; it was not changed"
        )
    return dict(value)


def _without_hook(settings: JsonObject) -> JsonDict:
    """Return *settings* without ctxpipe's hook, and without the objects that had nothing else."""
    events = dict(settings.get("hooks") or {})
    groups = events.get(EVENT) or []
    other_groups: list[Any] = []
    for group in groups:
        hooks = group.get("hooks") if isinstance(group, dict) else None
        other_hooks = hooks
        if isinstance(hooks, list):
            other_hooks = [hook for hook in hooks if not _is_ctxpipe_hook(hook)]
        if other_hooks == hooks:
            other_groups.append(group)
        elif other_hooks:
            other_groups.append({**group, "hooks": other_hooks})
    new_settings = dict(settings)
    if other_groups == groups:
        return new_settings
    events.pop(EVENT)
    if other_groups:
        events[EVENT] = other_groups
    new_settings.pop("hooks")
    if events:
        new_settings["hooks"] = events
    return new_settings


def _is_ctxpipe_hook(hook: object) -> bool:
    return isinstance(hook, dict) and MARK in str(hook.get("command"))


def _save(settings: str, before: JsonObject, after: JsonObject) -> bool:
    """Replace the file *settings* by *after* in one step; return False if it equals *before*.

    A copy of the previous file is kept in the same folder.
    """
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
    """Run the command ``ctxpipe claude-code hook | install | uninstall``."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.action == "hook":
        sys.stdout.write(_answer(sys.stdin.buffer.read(), options.root, options.min_chars))
        return 0
    settings = options.settings
    if options.user:
        settings = os.path.join(os.path.expanduser("~"), FOLDER, FILE)
    try:
        if options.action == "install":
            from ..storage.folders import check_root  # not at the top: the hook has no use for it

            # A relative root is a folder of each project, which is this one without --user.
            if os.path.isabs(options.root) or not options.user:
                check_root(os.path.abspath(options.root))
            is_changed = install(settings, _command(options.root, options.min_chars))
        else:
            is_changed = uninstall(settings)
    except (CtxpipeError, OSError) as error:
        parser.error(str(error))
    if options.action == "install":
        outcome = "the hook was added" if is_changed else "the hook is there already"
    else:
        outcome = "the hook was removed" if is_changed else "there is no hook of ctxpipe"
    sys.stdout.write(f"{settings}: {outcome}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command ``ctxpipe claude-code``."""
    parser = argparse.ArgumentParser(
        prog="ctxpipe claude-code",
        description="Move Claude Code's long tool results to files before they enter its history.",
    )
    parser.add_argument(
        "action",
        choices=["install", "uninstall", "hook"],
        help="add the hook to the settings; remove it; run it, as Claude Code does",
    )
    parser.add_argument(
        "--root",
        default=ROOT,
        help="the folder for the files, in the project; default: %(default)s",
    )
    parser.add_argument(
        "--min-chars",
        type=int,
        default=MIN_CHARS,
        help="minimum number of characters of a text that is moved; default: %(default)s",
    )
    parser.add_argument(
        "--settings",
        default=os.path.join(FOLDER, FILE),
        help="the settings file; default: %(default)s",
    )
    parser.add_argument(
        "--user", action="store_true", help="use the settings of all your projects instead"
    )
    return parser


def _command(root: str, min_chars: int) -> list[str]:
    """Return the command of the hook, with the absolute path of this Python."""
    return [sys.executable, "-m", *MARK.split(), "--root", root, "--min-chars", str(min_chars)]
