"""Records on disk: what is redacted, what is not; no form of JSON lets a secret through."""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from anthropic.types import TextBlock, ToolUseBlock
from histories import (
    assistant,
    conversation,
    histories,
    step,
    text,
    tool_result,
    tool_use,
    user,
    view,
)
from hypothesis import given
from hypothesis import strategies as st

from ctxpipe import (
    BatchOffload,
    Budget,
    Compact,
    ContextPipeline,
    DirectOffload,
    LocalStorage,
    SmartTruncate,
    StorageError,
)
from ctxpipe.functions import load_archive
from ctxpipe.messages import MAX_DEPTH, Message, check
from ctxpipe.stages.archive import parse_archive
from ctxpipe.stages.compact.stage import Evidence
from ctxpipe.stages.protocol import Stage
from ctxpipe.stages.reports import Outcome
from ctxpipe.storage.ownership import JOURNAL as NAME
from ctxpipe.storage.records import encode_record, redact_text
from ctxpipe.summarizers import Summary

ODD = {
    "quote": '"',
    "backslash": "\\",
    "line break": "\n",
    "tab": "\t",
    "accent": "ä",
    "astral": "🔑𝒳",
    "lone surrogate": "\ud83d",
    "script": "</script>",
    "control": "\x00\x7f\u2028",
    "all at once": "'\"\\\r\n\té漢\U0001f511</script>\\u0041",
}
PART = "S3CR3T"  # of each secret: whatever form it takes on disk, this shows

SURROGATE = f"{PART}{ODD['lone surrogate']}{PART}"
SECRETS = [f"{PART}{odd}{PART}" for odd in ODD.values()]
secrets = pytest.mark.parametrize("secret", SECRETS, ids=list(ODD))


def hiding(secret: str) -> Callable[[str], str]:
    return lambda text: text.replace(secret, "[hidden]")


def leaks(root: Path) -> list[str]:
    return [
        path.name
        for path in root.rglob("*")
        if path.is_file() and PART.encode() in path.read_bytes()
    ]


def conversation_with(secret: str) -> list[Message]:
    """*secret* wherever a message can hold text."""
    call: Any = tool_use(
        "t2", "run", {"env": [{"deep": {secret: [secret, 1]}}], "at": Path(secret)}
    )
    said: Any = text(f"hm {secret}")
    if secret != SURROGATE:  # the SDK's own objects refuse lone surrogates
        call, said = (
            ToolUseBlock(**{**call, "input": {"deep": {secret: [secret, 1]}}}),
            TextBlock(**said),
        )
    return [
        user(f"log in with {secret}, please"),
        assistant(tool_use("t1", "http", {"headers": {"auth": f"Bearer {secret}"}, secret: 1})),
        user(
            tool_result(
                "t1",
                [{"type": "text", "text": f"ok {secret}"}, {"type": "future", "of": {"x": secret}}],
            )
        ),
        cast("Message", {"role": "assistant", "content": [said, call]}),
        user(tool_result("t2", f"done {secret}"), {"type": "text", "text": secret}),
    ]


@secrets
async def test_a_secret_reaches_no_archive_text_or_journal_in_any_form(secret: str, tmp_path):
    storage, history = LocalStorage(tmp_path, redact=hiding(secret)), conversation_with(secret)

    await storage.save("s", "compact", {"form": 1, "messages": history})
    await storage.save("s", "truncate", history)
    await storage.write([("s/a.md", f"a text with {secret} in it")])
    if secret != SURROGATE:  # what is sent has none, so it is another text
        await ContextPipeline().session("s", journal=storage).run(history)

    assert leaks(tmp_path) == []
    assert len(list((tmp_path / "s").glob("*"))) >= 3


# no surrogate is sent, so none comes back
@pytest.mark.parametrize("secret", SECRETS[:6] + SECRETS[7:])
async def test_a_session_with_every_stage_writes_no_secret_down(secret: str, tmp_path):
    async def summarize(messages: Any, /) -> Summary:
        return Summary(f"The password is {secret}.")

    storage = LocalStorage(tmp_path, redact=hiding(secret))
    blocks = [{"type": "text", "text": f"line {secret}\n" * 90}, {"type": "text", "text": secret}]
    views = [view(f"v{n}", f"src/{secret}/module_{n}.py", "x = 1\n" * 9) for n in range(40)]
    history = conversation(
        user(f"log in with {secret}"),
        step("t1", result=f"{secret} and more\n" * 90),
        [assistant(tool_use("t2", "run", {})), user(tool_result("t2", blocks))],
        [
            assistant(tool_use("t3", "run", {"script": f"{secret}\n" * 900})),
            user(tool_result("t3", "ok")),
        ],
        *views,
        user(f"and now with {secret}"),
    )
    stages: list[Stage] = [
        DirectOffload(storage, min_chars=500),
        BatchOffload(storage, min_chars=100, keep_recent=0, inputs=frozenset({"run"})),
        Compact(summarize, storage, evidence=Evidence(tokens=60)),
        SmartTruncate(archive=storage),
    ]
    for window in (1500, 3000):
        pipeline = ContextPipeline(stages, budget=Budget(window), on_error="raise")
        session = pipeline.session(f"s{window}", journal=storage)
        for stop in (3, 5, 7, 60, len(history)):
            await session.run(history[:stop], force=stop == len(history))

    names = {
        re.sub(r"-\d{8}T\d{6}Z-\d+|-[0-9a-f]{8}", "", path.name) for path in tmp_path.rglob("*.*")
    }
    listed = {"compact-paths.txt"} if secret.isprintable() and '"' not in secret else set()
    assert {"t1.md", "t2.md", NAME, "compact.json", *listed} <= names
    assert leaks(tmp_path) == []


@pytest.mark.parametrize(
    "secret",
    [
        pytest.param("S3CR3T7=S3CR3T7", id="an identifier in it"),
        pytest.param("/vault/S3CR3T7/key.txt", id="a folder of it"),
        pytest.param("S3CR3T7-" * 40, id="the end of a command line"),
    ],
)
@pytest.mark.parametrize(
    "is_kept", [True, False], ids=["the history is kept", "the context is adopted"]
)
async def test_no_part_of_a_secret_is_cut_out_for_the_evidence(secret, is_kept, tmp_path):
    async def summarize(messages: Any, /) -> Summary:
        return Summary("All is well.")

    storage = LocalStorage(tmp_path, redact=hiding(secret))
    pipeline = ContextPipeline([Compact(summarize, storage)], budget=Budget(50_000))
    session = pipeline.session("s", journal=storage)
    history = conversation(
        user(f"Use {secret} with care. " + "Mind it. " * 2000 + secret),
        *(
            step(f"t{number}", "run", {"command": f"get {secret}"}, "x " * 1500)
            for number in range(2)
        ),
        assistant(f"I used {secret}."),
        user("Go on."),
    )

    result = await session.run(history, force=True)
    known = history if is_kept else result.messages
    again = conversation(*known, assistant("Done."), user("More."), step("t9", result="y " * 2000))
    result = await session.run([*again, assistant("Done."), user(f"And {secret}?")], force=True)

    assert result.reports[0].outcome is Outcome.CHANGED
    assert leaks(tmp_path) == []


@pytest.mark.parametrize("depth", [40, 400])
def test_a_secret_deep_in_an_input_is_found(depth):
    deep: Any = PART
    for number in range(depth):
        deep = {"x": deep} if number % 2 else [deep]

    history = [assistant(tool_use("t", "run", {"a": deep}))]
    text = "".join(encode_record(history, hiding(PART)))

    assert PART not in text
    assert text.count("[hidden]") == 1
    assert parse_archive("".join(encode_record(history)), "a.json") == history


@pytest.mark.parametrize("redact", [None, hiding(PART)], ids=["as it is", "redacted"])
def test_an_archive_holds_a_block_that_is_nested_as_deeply_as_allowed(
    redact: Callable[[str], str] | None,
):
    deep: Any = "x"
    for _ in range(MAX_DEPTH - 1):  # the block itself is one more level
        deep = {"x": deep}
    history = [user("go"), assistant(tool_use("t", "run", deep)), user(tool_result("t"))]
    assert check(history) == []

    text = "".join(encode_record({"form": 1, "messages": history}, redact))

    assert parse_archive(text, "a.json") == history


# What is left alone -------------------------------------------------------------------------------

GREEDY: dict[str, Callable[[str], str]] = {
    "long hex": lambda text: re.sub(r"[0-9a-f]{16,}", "***", text),
    "any digit": lambda text: re.sub(r"[0-9]", "#", text),
    "every text": lambda _: "X",
    "nothing left": lambda _: "",
    "json marks": lambda text: re.sub(r'[{}\[\]":,]', "", text),
}
greedy = pytest.mark.parametrize("redact", GREEDY.values(), ids=list(GREEDY))


@greedy
async def test_whatever_redact_does_an_archive_can_be_read_back(
    redact: Callable[[str], str], tmp_path
):
    history = conversation_with("a" * 40)
    path = await LocalStorage(tmp_path, redact=redact).save(
        "s", "compact", {"form": 1, "messages": history}
    )

    found = await load_archive(path)

    assert [message["role"] for message in found] == [message["role"] for message in history]
    call = cast("Any", found[1]["content"])[0]
    result = cast("Any", found[2]["content"])[0]
    assert (call["type"], call["id"], result["tool_use_id"]) == ("tool_use", "t1", "t1")


@given(histories(4), st.sampled_from(list(GREEDY.values())))
def test_redacting_keeps_the_number_and_the_shape_of_messages(
    history: list[Message], redact: Callable[[str], str]
):
    found = json.loads("".join(encode_record({"form": 1, "messages": history}, redact)))["messages"]

    def shape(value: Any) -> Any:
        if isinstance(value, dict):
            return sorted(map(repr, map(shape, value.values())))
        return (
            [shape(item) for item in value]
            if isinstance(value, list)
            else isinstance(value, str) or value
        )

    assert list(map(shape, found)) == list(map(shape, json.loads(json.dumps(history))))


@given(histories(3))
def test_a_redact_that_changes_nothing_changes_no_byte(history: list[Message]):
    assert "".join(encode_record(history, str)) == "".join(encode_record(history))


def test_keys_that_become_the_same_keep_their_values():
    call = assistant(tool_use("t", "run", {"sk-1": 1, "sk-2": 2, "sk-3": {"sk-4": 4}}))

    text = "".join(encode_record([call], lambda text: re.sub(r"sk-\d", "[key]", text)))

    assert json.loads(text)[0]["content"][0]["input"] == {
        "[key]": 1,
        "[key] 2": 2,
        "[key] 3": {"[key]": 4},
    }


@greedy
async def test_a_journal_is_trusted_whatever_redact_does(redact: Callable[[str], str], tmp_path):
    storage, history = LocalStorage(tmp_path, redact=redact), [user("sent " + "e" * 64)]
    await ContextPipeline().session("s", journal=storage).run(history)

    session = ContextPipeline().session("s", journal=storage)

    assert await session.history() == [user(redact("sent " + "e" * 64))]
    assert not any("damaged" in notice for notice in (await session.run(history)).notices)


# A session that is resumed ------------------------------------------------------------------------


async def resumed(
    storage: LocalStorage, history: list[Message], said: str, name: str = "s"
) -> tuple[int, tuple[str, ...], bool]:
    """Summaries paid by a second process, its notices, and whether its context was that sent."""
    calls = 0

    async def summarize(messages: Any, /) -> Summary:
        nonlocal calls
        calls += 1
        return Summary(said)

    def session() -> Any:
        stages = DirectOffload(storage, min_chars=500), Compact(summarize, storage)
        budget = Budget(window=2000, trigger=1200)
        return ContextPipeline(stages, budget=budget, on_error="raise").session(
            name, journal=storage
        )

    before = await session().run(history)
    paid, calls = calls, 0
    assert paid == 1
    after = await session().run(history)
    return calls, after.notices, after.messages == before.messages


LONG = conversation(
    user("go"), *(step(f"t{n}", result=f"line {n} " * 60) for n in range(20)), user("on")
)


@pytest.mark.parametrize("session", ["s", "A", "tenant/alice", "🙂", "x" * 300])
async def test_hiding_what_is_not_said_costs_no_second_summary(session, tmp_path):
    storage = LocalStorage(tmp_path, redact=GREEDY["long hex"])
    read = conversation(user("go"), step("t", result="one long result\n" * 90), LONG[1:])

    assert await resumed(storage, LONG, "We printed lines.", session) == (0, (), True)
    assert await resumed(storage, read, "We printed lines.", f"{session}, read") == (0, (), True)


@pytest.mark.parametrize("name", ["long hex", "every text", "nothing left"])
async def test_a_summary_that_was_redacted_is_not_paid_for_again_and_a_notice_says_so(
    name, tmp_path
):
    storage = LocalStorage(tmp_path, redact=GREEDY[name])

    calls, notices, is_same = await resumed(
        storage, LONG, f"The commit is {'0123456789abcdef' * 2}."
    )

    assert (calls, is_same) == (0, False)
    assert "redacted" in notices[0]
    assert not any("damaged" in notice for notice in notices)


# A redact that fails ------------------------------------------------------------------------------


def fail(text: str) -> str:
    raise ZeroDivisionError(text)


FAULTY: dict[str, Any] = {
    "raises": fail,
    "returns None": lambda _: None,
    "returns bytes": lambda text: text.encode("utf-8", "replace"),
    "takes no argument": lambda: "",
}


@pytest.mark.parametrize("redact", FAULTY.values(), ids=list(FAULTY))
async def test_a_redact_that_fails_writes_nothing_and_quotes_nothing(redact, tmp_path):
    storage = LocalStorage(tmp_path, redact=redact)
    attempts: list[Callable[[], Any]] = [
        lambda: storage.write([("s/a.md", PART)]),
        lambda: storage.save("s", "compact", [user(PART)]),
    ]

    for attempt in attempts:
        with pytest.raises(StorageError, match="redact") as failed:
            await attempt()
        assert PART not in "".join(traceback.format_exception(failed.value))
        assert failed.value.__cause__ is not failed.value
    assert leaks(tmp_path) == []


async def test_a_redact_that_fails_leaves_the_result_where_it_is(tmp_path):
    history = conversation(user("go"), step("t1", result=PART * 900))
    stage = DirectOffload(LocalStorage(tmp_path, redact=fail))

    result = await ContextPipeline([stage]).run(history, session_id="s")

    assert result.messages is history
    assert result.reports[0].outcome is not Outcome.CHANGED
    assert leaks(tmp_path) == []


# Results of several blocks ------------------------------------------------------------------------


@secrets
@pytest.mark.parametrize("indent", [None, 2])
def test_a_secret_in_blocks_that_are_stored_as_json_is_found(secret: str, indent: int | None):
    blocks = [{"type": "text", "text": f"a {secret} b"}, {"type": "text", "text": secret}]
    marks = None if indent else (",", ":")

    text = redact_text(
        json.dumps(blocks, ensure_ascii=False, indent=indent, separators=marks), hiding(secret)
    )

    hidden = [{"type": "text", "text": "a [hidden] b"}, {"type": "text", "text": "[hidden]"}]
    assert text == json.dumps(hidden, ensure_ascii=False, indent=indent, separators=marks)


@pytest.mark.parametrize("secret", ['a"b', "back\\slash", "two\nlines", "tab\t", "🔑 \ud83d"])
def test_a_secret_in_json_that_a_tool_printed_is_found_however_often_it_was_quoted(
    secret,
):
    printed = secret
    for _ in range(4):
        printed = f"the answer: {json.dumps({'token': printed})}, and more"

        assert "[hidden]" in redact_text(printed, hiding(secret))


@pytest.mark.parametrize(
    "text",
    ["", '"', '"\\', '"\\"', "\\", '"\\x"', 'C:\\new "D:\\table" 5" wide', '"\\u12"', "[{\\"],
)
def test_text_without_a_secret_stays_as_it_is(text):
    assert redact_text(text, hiding(PART)) == text
    assert redact_text(f"{text}\n{PART}", hiding(PART)) == f"{text}\n[hidden]"


@pytest.mark.parametrize("piece", ['"', '\\"', '"\\', "\\\\", '"a\\"', '{"a":"\\\\\\"'])
def test_no_text_makes_redacting_hang(piece):
    text = piece * (5_000_000 // len(piece))

    assert redact_text(text, lambda text: text) == text


# Half an emoji -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "redact",
    [
        lambda text: text.replace("SECRET", "\ud83d"),
        lambda text: text.replace("SECRET", "x\udc00"),
        lambda text: text.replace("SECRET", "\udc00\ud83d\ude00"),
    ],
    ids=["half an emoji", "a second half", "both"],
)
async def test_what_redact_returns_can_be_stored_and_read_back(
    redact: Callable[[str], str], tmp_path
):
    storage = LocalStorage(tmp_path, redact=redact)
    pipeline = ContextPipeline([DirectOffload(storage, min_chars=100)])
    history = conversation(user("go SECRET"), step("t1", result="SECRET " * 100))
    await pipeline.session("s", journal=storage).run(history)

    again = await pipeline.new_session("s", journal=storage).history()
    written = json.dumps(again, ensure_ascii=False)
    assert "SECRET" not in written
    assert written.encode().decode() == written
    assert "\ufffd" in redact_text("go SECRET", redact)


def test_a_surrogate_that_was_there_before_redact_is_kept():
    assert redact_text("\ud83d", str) == "\ud83d"
