"""What is fuzzed: everything that reads what somebody else may have written.

Each target is a function from bytes.

A target lets pass the errors that its reader documents. Whatever else is raised, or an answer that
contradicts itself, is a find. `test_fuzz.py` replays seeds and earlier finds without a fuzzer;
`search.py` searches for new ones.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from histories import (
    chat,
    conversation,
    python_source,
    step,
    text,
    thinking,
    tool_result,
    tool_use,
    user,
)

from ctxpipe import ContextPipeline
from ctxpipe.errors import InvalidHistory, StorageError, TranscriptError
from ctxpipe.folding.fold import fold_files
from ctxpipe.lab.transcripts import read_transcript
from ctxpipe.messages import Message, check
from ctxpipe.placeholders.placeholders import (
    BATCH,
    DIRECT,
    Preview,
    any_reference,
    placeholder,
    quoted_file_names,
    reference,
)
from ctxpipe.placeholders.summaries import (
    SUMMARY,
    archive_references,
    assemble,
    own_words,
    reminder,
    restored_path,
    safe_summary,
    summary_body,
    summary_extras,
)
from ctxpipe.session import Session
from ctxpipe.stages.archive import archive_record, parse_archive
from ctxpipe.stages.reading.user_commands import extract_commands
from ctxpipe.storage import Page
from ctxpipe.storage.records import encode_record

__all__ = ["SEEDS", "TARGETS", "variations"]

EXTENSIONS = (
    *("py", "js", "ts", "tsx", "go", "rs", "java", "c", "cpp", "rb", "php", "swift", "kt", "cs"),
    *("sh", "xyz", ""),
)


def transcripts(data: bytes):
    """A recorded conversation of any agent, or of none."""
    try:
        found = read_transcript("recorded.jsonl", data)
    except TranscriptError:
        return
    assert check(found.messages) == []
    assert found.calls <= len(found.messages)


def placeholders(data: bytes):
    """What a tool or a model says, taken for a placeholder, a summary, evidence, a file."""
    said = (
        data.decode("utf-8", "surrogatepass" if b"\xed" in data else "replace")
        if _decodes(data)
        else repr(data)
    )
    for where in (reference(said), any_reference(said)):
        assert where is None or ("\n" not in where and where in said)
    names = quoted_file_names(said)
    assert all(name in said for name in names)
    for form in (DIRECT, BATCH):
        shown = placeholder(form, "s/a.md", said, Preview(3, 2))
        if len(said) > 5:
            assert any_reference(shown) == "s/a.md"
        assert reference(placeholder(form, "s/a.md", said)) == "s/a.md"
    message = user(said)
    body, extras = summary_body(message), summary_extras(message)
    assert body is None or said.endswith(body + extras)
    archive_references(said)
    restored_path(message)
    assert own_words(message) in said
    summary = assemble([], safe_summary(said), [])[0]
    assert summary_extras(summary) == ""
    assert not extract_commands([summary])


def _decodes(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return b"\xed" not in data
    return True


def archives(data: bytes):
    """A file that should hold archived messages."""
    said = data.decode("utf-8", "replace")
    try:
        messages = parse_archive(said, "archive.json")
    except (InvalidHistory, StorageError):
        return
    assert parse_archive("".join(encode_record(archive_record(messages))), "again") == messages


HISTORY: list[Message] = conversation(
    user("go"), step("t1", result="one"), step("t2", result="two"), chat(2)
)


class WrittenByOthers:
    """A storage for a journal whose *entries* somebody else has been at."""

    def __init__(self, entries: Sequence[str]):
        self.held = list(entries)

    async def append(self, _: str, number: int, entry: str, /) -> bool:
        if number != len(self.held):
            return False
        self.held.append(entry)
        return True

    async def entries(self, _: str, start: int = 0, /) -> list[str]:
        return self.held[start:]

    async def set_aside(self, _: str, /) -> str:
        self.held.clear()
        return "journal-set-aside-1.jsonl"

    async def read(self, location: str, /, *_: object) -> Page:
        raise StorageError(f"there is no text {location!r}")

    def session(self) -> Session:
        return ContextPipeline().session("s", journal=self)


def journals(data: bytes):
    """A journal after somebody has been at it: as it is, and with seals that fit what he wrote."""
    lines = data.decode("utf-8", "replace").split("\n")[:-1]
    asyncio.run(_go_on_from(WrittenByOthers(lines), is_forged=False))
    forged = _sealed([line.partition(" ")[2] for line in lines])
    asyncio.run(_go_on_from(WrittenByOthers(forged), is_forged=True))


async def _go_on_from(storage: WrittenByOthers, *, is_forged: bool):
    with suppress(StorageError):
        await storage.session().history()
    session = storage.session()
    result = await session.run(HISTORY)
    assert result.covered == len(HISTORY)
    with suppress(StorageError):  # a text may be said to lie in a file
        known = await session.history()
        assert is_forged or known == HISTORY


def _sealed(bodies: Sequence[str]) -> list[str]:
    """*bodies* as the entries of a journal without keys, which others can write as well."""
    entries, before = list[str](), ""
    for number, body in enumerate(bodies):
        text = "\0".join(("s", str(number), before, body)).encode("utf-8", "surrogatepass")
        before = hmac.new(b"ctxpipe", text, "sha256").hexdigest()[:32]
        entries.append(f"{before} {body}")
    return entries


def folding(data: bytes):
    """Source in some language, whole or not."""
    said = data[1:].decode("utf-8", "replace")
    path = f"src/file.{EXTENSIONS[data[0] % len(EXTENSIONS)]}" if data else "src/file.py"
    folded = fold_files([(path, said)], max_tokens=50, count=len)
    assert folded.files_processed + folded.files_skipped == 1
    assert fold_files([(path, said)], max_tokens=50, count=len) == folded


TARGETS: Mapping[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (transcripts, placeholders, archives, journals, folding)
}


# Seeds --------------------------------------------------------------------------------------------


def _lines(*values: object) -> bytes:
    return "\n".join(json.dumps(value) for value in values).encode()


def _journal() -> bytes:
    """Three entries: a turn, one that has shortened it, and one that went back."""
    storage = WrittenByOthers([])

    async def write() -> None:
        session = storage.session()
        await session.run(HISTORY[:3])
        await session.run([user("short"), *HISTORY[1:]])
        await session.run([*HISTORY[:3], *chat(2)])

    asyncio.run(write())
    entry = json.loads(storage.held[1].partition(" ")[2])
    entry["turns"][0] |= {"edits": [[0, 1, [user("shorter")], ["0" * 32]]], "stale": [[0, 0]]}
    entry |= {"samples": [[None, 10, 15, 10, 15]], "windows": [["m", 1000]]}
    bodies = [line.partition(" ")[2] for line in storage.held]
    bodies[1] = json.dumps(entry, separators=(",", ":"))
    return "".join(f"{line}\n" for line in _sealed(bodies)).encode()


def _claude_code() -> bytes:
    common = {
        "isSidechain": False,
        "userType": "external",
        "cwd": "/w",
        "sessionId": "s",
        "version": "1.0",
    }
    said = {"role": "user", "content": "go"}
    reply = {
        "id": "m",
        "role": "assistant",
        "model": "claude",
        "content": [tool_use("t1", "Bash", {"command": "ls"})],
    }
    return _lines(
        {"type": "summary", "summary": "x", "leafUuid": "u"},
        {
            **common,
            "type": "user",
            "uuid": "a",
            "parentUuid": None,
            "timestamp": "2026-01-01T00:00:00Z",
            "message": said,
        },
        {**common, "type": "assistant", "uuid": "b", "parentUuid": "a", "message": reply},
        {
            **common,
            "type": "user",
            "uuid": "c",
            "parentUuid": "b",
            "message": user(tool_result("t1", "a.py")),
        },
    )


def _openai() -> bytes:
    call: dict[str, Any] = {
        "id": "c1",
        "type": "function",
        "function": {"name": "ls", "arguments": '{"path": "."}'},
    }
    return _lines(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "a.py"},
    )


SOURCES = (
    python_source(3),
    (
        "class A extends B { m(x) { return `${x}`; } }\nexport const f = () => 1;\nA.prototype.g = "
        "function () {};\n"
    ),
    "package p\n\nfunc (r *R) M(a int) error { return nil }\ntype R struct{}\n",
    "impl<T> A<T> { pub fn new() -> Self { A {} } }\nmacro_rules! m { () => {} }\n",
    "#include <x>\ntemplate <class T> struct S { void f() const; };\nint main() { return 0; }\n",
    "public class A { void m() {} interface I { int n(); } }\n",
    "def a; end\nmodule M; class << self; def b(x) = x; end; end\n",
    "<?php\nnamespace N; trait T { abstract function f(); } function g() {}\n",
)

DEEP = b"[" * 3000

SEEDS: Mapping[str, list[bytes]] = {
    "transcripts": [
        b"",
        DEEP,
        b"[]",
        b"\xff\xfe",
        _lines(*HISTORY),
        json.dumps(HISTORY).encode(),
        json.dumps({"model": "m", "system": "x", "messages": HISTORY}).encode(),
        _lines({"type": "header", "agent": "x"}, *HISTORY),
        _claude_code(),
        _openai(),
        _lines(
            {"role": "assistant", "content": [thinking(), tool_use("t1", "bash", {})]},
            user(tool_result("t2")),
        ),
    ],
    "placeholders": [
        DIRECT.format("/store/s/t1.md").encode(),
        placeholder(BATCH, "./s/t1.md", "x" * 99, Preview(10, 5)).encode(),
        (SUMMARY + "x" + reminder(["<command>go</command>"])).encode(),
        (
            b"[Conversation compressed]\n\nwords\n\n<evidence>\nKept\nPaths:\n- a.py\n$ make\n! "
            b"make\n</evidence>"
        ),
        b"[Restored after compact] src/a.py:\ncode",
        b"Continue with the task. It is under way; the user's latest request was:\n\nmore",
        b"half a pair \xed\xa0\xbd",
    ],
    "archives": [
        DEEP,
        b"[]\n",
        b"{}",
        "".join(encode_record(archive_record(HISTORY))).encode(),
        "".join(encode_record([user(text("a"), tool_result("t", [text("b")]))])).encode(),
        b'[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": 1, "content": 5}]}]',
    ],
    "journals": [_journal(), _journal()[:-40], b"0123456789abcdef {}\nx\n", b"x " + DEEP + b"\n"],
    "folding": [
        bytes([number]) + source.encode()
        for source in SOURCES
        for number in range(0, len(EXTENSIONS), 3)
    ],
}


def variations(seed: bytes, number: int, chance: random.Random) -> list[bytes]:
    """*number* damaged copies of *seed*: bytes changed, left out, doubled, cut off."""
    made = []
    for _ in range(number):
        data = bytearray(seed)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(data) + 1)
            to = min(len(data), at + chance.choice((1, 1, 4, 40)))
            parts: tuple[bytes, ...] = (
                b"",
                bytes(data[at:to]) * 2,
                bytes(chance.randbytes(to - at)),
                PIECES[chance.randrange(len(PIECES))],
            )
            data[at:to] = chance.choice(parts)
        made.append(bytes(data))
    return made


PIECES = (
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"-1",
    b"1e999",
    b'"\\ud83d"',
    b"[[",
    b"\n",
    b'"type":',
    b"tool_use",
    b"9" * 30,
    b"\x00",
)
