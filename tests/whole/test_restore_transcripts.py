"""How many files still come back on recorded conversations, whose disk is rebuilt from them."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sequence
from typing import Any

import pytest
from recorded import NIGHTLY, recorded, sample

from ctxpipe.errors import StorageError
from ctxpipe.messages import Message, ToolCall, result_text, tool_calls, tool_results
from ctxpipe.providers.agent_tools import COMMON_READING_TOOLS
from ctxpipe.stages.compact.stage import Restore
from ctxpipe.stages.compact.working_set import working_set
from ctxpipe.stages.reading.views import viewed_path
from ctxpipe.storage.files import FileText
from ctxpipe.tokens import as_counter

pytestmark = pytest.mark.shared

# Written without ctxpipe's own reading of views, which is what is measured here.
NUMBERED = re.compile(r"^ *(\d+)(?:→|: ?|\t)(.*)$", re.MULTILINE)
FRAMES = (
    re.compile(r"<returncode>\d+</returncode>\n<output>\n(.*?)\n?</output>", re.DOTALL),
    re.compile(r"(?:[A-Z][\w ]+: [^\n]*\n)+Output:\n(.*)", re.DOTALL),
    re.compile(
        r"(.*?)\n*(?:\(Open file: [^\n]*\)\n\(Current directory: [^\n]*\)\nbash-\$)", re.DOTALL
    ),
    re.compile(r"(.*?)\n*\[\d+ more lines in file[^\n]*\]", re.DOTALL),
    re.compile(r"(.*?)\n*\[Showing lines [^\n]*\]", re.DOTALL),
    re.compile(r"(.*?)\n*\.\.\. \(\d+ more lines not shown[^\n]*\)", re.DOTALL),
)
RANGE = re.compile(r"sed -n ['\"]?(\d+),")
PATCH = re.compile(r"^\*\*\* (?:Add|Update) File: (.+)\n((?:(?!\*\*\* ).*\n)*)", re.MULTILINE)


class Disk:
    """The files as the conversation leaves them: lines by number, or by themselves."""

    def __init__(self) -> None:
        self.files: dict[str, dict[object, str]] = {}

    def play(self, messages: Sequence[Message]):
        calls: dict[str, ToolCall] = {}
        for index in range(len(messages)):
            calls |= {call.id: call for call in tool_calls(messages, index, index + 1)}
            for result in tool_results(messages, index, index + 1):
                call = calls.get(result.tool_use_id)
                if call is not None and not result.is_error:
                    self._view(call, result_text(result))
                    self._write(call.input)

    def _view(self, call: ToolCall, shown: str):
        path = viewed_path(call, COMMON_READING_TOOLS, True)
        if path is None or re.match(r"<tool_use_error>|<path>[^\n]*\n<type>directory", shown):
            return
        file = self.files.setdefault(posixpath.normpath(path), {})
        lines = NUMBERED.findall(shown)
        if len(lines) > shown.count("\n") / 2:
            if lines[0][0] == "1" and not {"offset", "limit", "view_range"} & set(call.input):
                file.clear()
            file.update((int(number), line) for number, line in lines)
            return
        for frame in FRAMES:
            found = frame.fullmatch(shown.strip())
            shown = found[1] if found else shown
        command = json.dumps(call.input)
        start = RANGE.search(command)
        begin = int(start[1]) if start else int(str(call.input.get("offset", 1)))
        if "tail" in command:
            begin = 10**6
        if begin == 1 and not {"limit"} & set(call.input) and "head" not in command and not start:
            file.clear()
        file.update(enumerate(shown.split("\n"), begin))

    def _write(self, given: Any):
        path = given.get("file_path") or given.get("filePath") or given.get("path")
        for name, body in PATCH.findall(str(given.get("input") or given.get("patch") or "")):
            lines = body.splitlines()
            self._replace(
                name.strip(),
                "\n".join(line[1:] for line in lines if line[:1] in ("-", " ")),
                "\n".join(line[1:] for line in lines if line[:1] in ("+", " ")),
            )
        if not isinstance(path, str):
            return
        if isinstance(given.get("content"), str):
            lines = enumerate(given["content"].split("\n"), 1)
            self.files[posixpath.normpath(path)] = dict(lines)
        for edit in given.get("edits") or [given]:
            for old, new in (
                ("old_string", "new_string"),
                ("oldText", "newText"),
                ("oldString", "newString"),
                ("old_str", "new_str"),
            ):
                if isinstance(edit, dict) and isinstance(edit.get(old), str):
                    self._replace(path, edit[old], edit.get(new, ""))

    def _replace(self, path: str, old: str, new: str):
        file = self.files.setdefault(self._key(path), {})
        numbers = sorted(n for n in file if isinstance(n, int))
        text = "\n".join(file[n] for n in numbers)
        if old and old in text:
            file.clear()
            file.update(enumerate(text.replace(old, new, 1).split("\n"), 1))
        else:  # in a part that was never shown
            file.update(((path, len(file), line), line) for line in new.split("\n")[1:-1])

    def _key(self, path: str) -> str:
        path = posixpath.normpath(path)
        return next((name for name in self.files if name.endswith(path)), path)

    async def read(self, path: str, /, max_bytes: int) -> FileText:  # noqa: ARG002
        lines = self.files.get(posixpath.normpath(path))
        if lines is None:
            raise StorageError(f"{path} was never shown")
        text = "\n".join([*lines.values(), "a line that no result has shown"])
        return FileText(posixpath.normpath(path), text)


@pytest.mark.shared
async def test_of_the_files_that_came_back_without_the_rule_95_percent_still_do(shared, capsys):
    counter, before, after = as_counter(None), 0, 0
    for path in sample(8):
        history = recorded(path)
        for tenth in range(2, 11, 1 if NIGHTLY else 4):
            messages = history[: len(history) * tenth // 10]
            disk = Disk()
            disk.play(messages)
            restore = Restore(
                files=disk, shell=True, max_tokens_per_file=10**6, max_tokens_total=10**7
            )
            result = await restore.read_again(messages, counter, "s", None)
            wanted = [
                file.path
                for file in working_set(messages, tools=COMMON_READING_TOOLS, shell=True)
                if not file.denied and posixpath.normpath(file.path) in disk.files
            ][:5]
            back = {file.path for file in result.files}
            before += len(wanted)
            after += len(back & set(wanted))
    with capsys.disabled():
        print(f"\n{after} of {before} files still come back: {after / before:.1%}")
    assert after >= 0.95 * before
