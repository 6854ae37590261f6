"""Raw messages set aside, and read back."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from anthropic.types import TextBlock, ToolUseBlock
from histories import assistant, histories, system, user
from hypothesis import given
from memory import traced_memory

from ctxpipe import Budget, Compact, ContextPipeline
from ctxpipe.errors import InvalidHistory, StorageError
from ctxpipe.functions import compact_messages, load_archive
from ctxpipe.messages import Message
from ctxpipe.stages.archive import (
    FORM,
    ArchiveContent,
    archive_digest,
    archive_record,
    last_part,
    read_verified,
    records_by_name,
)
from ctxpipe.stages.reading.conversation_facts import ConversationFacts
from ctxpipe.storage import Archive, LocalStorage
from ctxpipe.storage.records import encode_record
from ctxpipe.summarizers import Summary


async def find_archive(
    storage: Archive | None, session_id: str, path: str, digest: str
) -> ArchiveContent | None:
    """Return the archive that a context names by *path* and *digest*, if it is verified."""
    records = await records_by_name(storage, session_id)
    record = records.get(last_part(path))
    return None if record is None else await read_verified(storage, record, digest)


async def archived(messages: list[Message], folder: Path) -> str:
    return await LocalStorage(folder).save("s", "compact", archive_record(messages))


@given(histories(repeat_ids=True))
def test_the_text_is_json_that_gives_the_very_messages(history: list[Message]):
    assert json.loads("".join(encode_record(archive_record(history)))) == {
        "form": FORM,
        "messages": history,
    }


async def test_the_very_messages_come_back_from_disk(tmp_path):
    history = [
        system("S"),
        user("ü 漢字 🙂 \ud83d \u2028 \0 \r\n\ttail "),
        user({"type": "odd", "deep": [1, 2.5, None, True, {"x": {}}], "empty": []}),
        cast("Message", {"role": "assistant", "content": [], "own": "key"}),
    ]

    assert await load_archive(await archived(history, tmp_path)) == history


async def test_a_bare_list_of_messages_is_an_archive_too(tmp_path):
    history = [user("a\nb"), assistant("c")]

    assert await load_archive(await LocalStorage(tmp_path).save("s", "compact", history)) == history


async def test_the_stage_writes_a_form_and_the_function_the_bare_list_of_the_requirements(
    tmp_path,
):
    async def summarize(messages: Any, /) -> Summary:
        return Summary("It went well.")

    history = [user("go " * 900), assistant("a secret " * 900), user("on")]
    hidden = [user("go " * 900), assistant("a ****** " * 900), user("on")]
    storage = LocalStorage(tmp_path, redact=lambda text: text.replace("secret", "******"))
    done = await compact_messages(
        history, summarize=summarize, archive=storage, context_token_limit=1_000
    )
    stage = Compact(summarize, archive=storage)
    result = await ContextPipeline([stage], budget=Budget(3_000)).run(
        history, session_id="s", force=True
    )

    assert json.loads(Path(done.original_messages_path or "").read_text()) == hidden
    archive = cast("Any", result.reports[0].detail).archive
    record = json.loads(Path(archive).read_text())
    facts = record.pop("facts")
    assert record == {"form": 1, "messages": hidden}
    assert facts["requests"] == ["go " * 900, "on"]


async def test_the_facts_in_an_archive_come_back_redacted(tmp_path):
    facts = ConversationFacts(
        {"a.py": True, "secret.py": False},
        {"make secret": True},
        ["ID-1"],
        ["Keep the secret."],
        orders=["<command>Never tell.</command>"],
    )
    storage = LocalStorage(tmp_path, redact=lambda text: text.replace("secret", "******"))

    path = await storage.save("s", "compact", archive_record([user("x")], facts=facts))

    found = await read_verified(storage, path, await archive_digest(storage, path) or "")
    assert found is not None
    assert found.facts == ConversationFacts(
        {"a.py": True, "******.py": False},
        {"make ******": True},
        ["ID-1"],
        ["Keep the ******."],
        orders=["<command>Never tell.</command>"],
    )


@pytest.mark.parametrize(
    "facts", [{}, {"paths": 3}, {"paths": [["a"]], "commands": []}, {"paths": [], "commands": [1]}]
)
async def test_an_archive_with_facts_of_another_form_is_refused(tmp_path, facts):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"form": 1, "facts": facts, "messages": []}))

    with pytest.raises(InvalidHistory, match="is not an archive of messages"):
        await load_archive(path)


async def test_objects_of_the_sdk_come_back_as_they_would_be_sent(tmp_path):
    reply: Any = [
        TextBlock(type="text", text="hm"),
        ToolUseBlock(type="tool_use", id="t", name="ls", input={"a": 1}),
    ]

    path = await archived([{"role": "assistant", "content": reply}], tmp_path)

    assert await load_archive(path) == [
        assistant("hm", {"type": "tool_use", "id": "t", "name": "ls", "input": {"a": 1}}),
    ]


async def test_what_cannot_be_archived_faithfully_is_an_error_and_leaves_no_file(
    tmp_path,
):
    odd: Any = {"role": "user", "content": [{"type": "text", "text": object()}]}

    with pytest.raises(StorageError, match="cannot be sent"):
        await archived([odd], tmp_path)
    assert [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix == ".json"] == []


@pytest.mark.parametrize("redact", [None, lambda text: text.replace("y", "z")])
def test_no_second_copy_of_the_history_is_ever_held(redact: Callable[[str], str] | None):
    history = [user("x" * 100_000 + str(number)) for number in range(200)]

    with traced_memory():
        for _ in encode_record(archive_record(history), redact):
            pass
        _, peak = tracemalloc.get_traced_memory()

    assert peak < 2_000_000  # of 20,000,000


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", '{"role": "user"}', '["text"]', '[{"role": "user"}]', "null", '"text"', "3"),
        *('{"form": 1}', '{"form": 1, "messages": 3}', '{"form": 0, "messages": []}'),
        '{"messages": []}',
        *('{"form": "2", "messages": []}', "[" * 100_000),
    ],
)
async def test_what_is_no_archive_is_refused(tmp_path, text):
    path = tmp_path / "a.json"
    path.write_text(text)

    with pytest.raises(InvalidHistory, match="not an archive"):
        await load_archive(path)


@pytest.mark.parametrize("form", [2, 3, 10**9])
async def test_an_archive_of_a_newer_form_is_refused_with_the_way_out(tmp_path, form):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"form": form, "entries": "of another kind"}))

    with pytest.raises(StorageError, match=rf"a newer ctxpipe, in form {form}; update ctxpipe"):
        await load_archive(path)


async def test_a_missing_archive_is_a_storage_error(tmp_path):
    with pytest.raises(StorageError, match="cannot read the archive"):
        await load_archive(tmp_path / "gone.json")


# Archives that a context names --------------------------------------------------------------------

HISTORY = [user("go"), assistant("a lot"), user("on")]


async def test_an_archive_of_the_session_with_the_right_digest_is_believed(tmp_path):
    storage = LocalStorage(tmp_path)
    path = await archived(HISTORY, tmp_path)
    digest = await archive_digest(storage, path)

    assert digest is not None
    for seen in (path, f"./s/{Path(path).name}", f"C:\\mnt\\s\\{Path(path).name}"):
        assert await find_archive(storage, "s", seen, digest) == ArchiveContent(HISTORY, [])


async def test_what_is_stored_decides_and_not_what_was_said(tmp_path):
    storage = LocalStorage(tmp_path, redact=lambda text: text.replace("lot", "***"))
    path = await storage.save("s", "compact", archive_record(HISTORY))

    found = await find_archive(storage, "s", path, await archive_digest(storage, path) or "")

    assert found == ArchiveContent([user("go"), assistant("a ***"), user("on")], [])


async def test_no_other_file_is_trusted_because_of_what_the_context_says(tmp_path):
    storage = LocalStorage(tmp_path / "root")
    outside = LocalStorage(tmp_path / "outside")
    path = await archived(HISTORY, tmp_path / "root")
    digest = await archive_digest(storage, path) or ""
    foreign = await outside.save("s", "truncate", archive_record(HISTORY))
    other = await storage.save("t", "truncate", archive_record(HISTORY))
    [text] = await storage.write([("s/a.md", Path(path).read_text())])

    assert await find_archive(storage, "s", path, digest) == ArchiveContent(HISTORY, [])
    for name in (
        foreign,
        other,
        text,
        f"{path}x",
        "",
        "..",
        "/",
        "\0",
        "\ud800",
        "/etc/passwd",
        "a\nb",
        "x" * 10**6,
    ):
        assert await find_archive(storage, "s", name, digest) is None
    for wrong in ("", digest[:-1], digest.upper() + " ", "0" * 35, "\ud800"):
        assert await find_archive(storage, "s", path, wrong) is None
    assert await find_archive(None, "s", path, digest) is None


async def test_an_archive_that_was_changed_is_no_longer_believed(tmp_path):
    storage = LocalStorage(tmp_path)
    path = await archived(HISTORY, tmp_path)
    digest = await archive_digest(storage, path) or ""

    for text in (
        Path(path).read_text().replace("a lot", "a lie"),
        "",
        "[" * 100_000,
        '{"form": 2}',
    ):
        Path(path).write_text(text)
        assert await find_archive(storage, "s", path, digest) is None


async def test_a_record_with_the_right_digest_that_holds_no_messages_is_not_believed(
    tmp_path,
):
    storage = LocalStorage(tmp_path)
    for record in (["no message"], {"form": 2, "messages": []}, {"form": 1, "messages": "none"}):
        path = await storage.save("s", "compact", record)

        assert (
            await find_archive(storage, "s", path, await archive_digest(storage, path) or "")
            is None
        )
