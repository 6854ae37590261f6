"""Reading tools for the model: page by page and by search, and nothing outside the storage."""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anthropic.types import ToolUseBlock
from histories import tool_result, tool_use
from hypothesis import example, given
from hypothesis import strategies as st
from in_memory import messages_api
from models import MODEL
from recorded import NIGHTLY
from sdks import needs_middleware

from ctxpipe import (
    ContextPipeline,
    LocalStorage,
    SettingsError,
    StorageError,
    Tool,
    answer,
    offload_tools,
    testing,
)
from ctxpipe.adapters.anthropic import ctxpipe_middleware
from ctxpipe.placeholders.names import session_folder
from ctxpipe.providers.agent_tools import READ_BACK_TOOLS
from ctxpipe.stages.reading import search as edits
from ctxpipe.storage import Page
from ctxpipe.tools import ToolInputError, as_beta_tools
from ctxpipe.tools import offloaded as module

TEXT = "\n".join(
    f"line {n}: {'漢🙂' * (n % 3)} status {'FAILED' if n % 10 == 7 else 'ok'}"
    for n in range(1, 101)
)


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    storage = LocalStorage(tmp_path / "root")
    anyio.run(
        storage.write, [("s/a.md", TEXT), ("s/empty.md", ""), ("t/b.md", "of another session")]
    )
    return storage


def tools(storage: LocalStorage, **options: Any) -> tuple[Tool, Tool]:
    reading, searching, *_ = offload_tools(storage, **options)
    return reading, searching


async def read(storage: LocalStorage, arguments: Mapping[str, object], **options: Any) -> str:
    return str(await tools(storage, **options)[0](arguments))


async def search(storage: LocalStorage, arguments: Mapping[str, object], **options: Any) -> str:
    return str(await tools(storage, **options)[1](arguments))


# Definitions --------------------------------------------------------------------------------------


def test_the_definitions_are_plain_anthropic_tools(storage):
    for tool, required in zip(tools(storage), (["path"], ["path", "pattern"]), strict=True):
        schema = cast("Any", tool.definition["input_schema"])
        assert set(tool.definition) == {"name", "description", "input_schema"}
        assert schema["type"] == "object"
        assert schema["required"] == required
        assert set(required) < set(schema["properties"])


def test_the_stages_exempt_tools_of_exactly_these_names(storage):
    assert {tool.name for tool in offload_tools(storage)} == READ_BACK_TOOLS


def test_the_definition_names_the_size_of_an_answer(storage):
    schema = cast("Any", tools(storage, max_chars=500)[0].definition["input_schema"])

    assert schema["properties"]["limit"]["default"] == 500


# Reading ------------------------------------------------------------------------------------------


async def test_a_short_text_is_returned_whole(storage):
    assert await read(storage, {"path": "./s/a.md"}) == TEXT


async def test_the_pages_of_a_long_text_join_to_the_text(storage):
    pages, offset = [], 0
    while True:
        page = await read(storage, {"path": "s/a.md", "offset": offset}, max_chars=700)
        more = re.search(
            r"\n\[Characters (\d+) to (\d+) of (\d+)\. Read on with offset=(\d+)\.\]\Z", page
        )
        pages.append(page[: more.start()] if more else page)
        if more is None:
            break
        assert (int(more[1]), int(more[2]), int(more[3])) == (offset, int(more[4]), len(TEXT))
        offset = int(more[4])

    assert len(pages) > 3
    assert all(len(page) <= 700 for page in pages)
    assert "".join(pages) == TEXT


async def test_offset_and_limit_count_characters(storage):
    page = await read(storage, {"path": "s/a.md", "offset": 10, "limit": 20})

    assert page.startswith(TEXT[10:30] + "\n[Characters 10 to 30 of")


async def test_an_empty_file_says_that_it_is_empty(storage):
    assert await read(storage, {"path": "s/empty.md"}) == "[The file is empty.]"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "path is missing; give a text"),
        ({"path": ""}, "path is missing"),
        ({"path": 5}, "path is missing"),
        ({"path": "s/a.md", "offset": -1}, "offset is -1; give a whole number of 0 or more"),
        ({"path": "s/a.md", "offset": "1"}, "offset is '1'"),
        ({"path": "s/a.md", "offset": True}, "offset is True"),
        ({"path": "s/a.md", "limit": 0}, "limit is 0; give a whole number of 1 or more"),
        (
            {"path": "s/a.md", "offset": 10**6},
            f"offset is 1000000, but the file has only {len(TEXT)} characters",
        ),
        (
            {"path": "s/gone.md"},
            "there is no offloaded text 's/gone.md'; give the path as the placeholder has it",
        ),
    ],
)
async def test_an_invalid_argument_gives_an_error_that_helps(
    storage, arguments: dict[str, object], words
):
    with pytest.raises(ToolInputError, match=re.escape(words)):
        await read(storage, arguments)


# Staying inside -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "../outside.md",
        "s/../../outside.md",
        "s",
        ".",
        "~",
        "\0",
        "\ud83d",
        "x" * 9999,
    ],
)
async def test_nothing_outside_of_the_storage_is_read(storage, tmp_path, path):
    (tmp_path / "outside.md").write_text("secret")

    for attempt in (read(storage, {"path": path}), search(storage, {"path": path, "pattern": "s"})):
        with pytest.raises(ToolInputError, match="there is no offloaded text"):
            await attempt


async def test_no_answer_names_a_folder_of_this_machine(storage, tmp_path):
    with pytest.raises(ToolInputError) as failed:
        await read(storage, {"path": "s/gone.md"})

    assert str(tmp_path) not in str(failed.value)


async def test_with_a_session_no_other_session_can_be_read(storage):
    assert await read(storage, {"path": "s/a.md"}, session_id="s") == TEXT
    assert await read(storage, {"path": "t/b.md"}) == "of another session"

    errors = []
    for path in ("t/b.md", "t/no.md"):
        with pytest.raises(ToolInputError) as failed:
            await read(storage, {"path": path}, session_id="s")
        errors.append(str(failed.value).replace(path, "…"))
    assert len(set(errors)) == 1


# Searching ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("victim", "attacker"),
    [
        ("tenant/alice", session_folder("tenant/alice")),
        ("tenant/alice", "tenant-alice-9bdbb017"),
        ("Alice", "alice"),
        ("tool-result-a.md/x", "tool-result-a.md"),
    ],
)
async def test_texts_of_a_session_with_a_similar_name_cannot_be_read(tmp_path, victim, attacker):
    storage = LocalStorage(tmp_path)
    keys = [f"{session_folder(victim)}/a.md", "tool-result-a.md"]
    await storage.write([(key, "a secret") for key in keys])

    for key in keys:
        with pytest.raises(ToolInputError, match="there is no offloaded text"):
            await read(storage, {"path": key}, session_id=attacker)
    assert await read(storage, {"path": keys[0]}, session_id=victim) == "a secret"


async def test_a_search_gives_the_lines_with_number_and_offset(storage):
    found = (await search(storage, {"path": "s/a.md", "pattern": "FAILED"})).split("\n")

    assert len(found) == 10
    for line in found:
        told = re.fullmatch(r"line (\d+), offset (\d+): (.*)", line)
        assert told is not None
        assert TEXT.split("\n")[int(told[1]) - 1] == told[3]
        assert TEXT[int(told[2]) :].startswith(told[3])


async def test_a_pattern_is_taken_literally(storage):
    await storage.write([("s/c.md", "a+b\naab\n[x]")])

    assert await search(storage, {"path": "s/c.md", "pattern": "a+b"}) == "line 1, offset 0: a+b"
    assert (
        await search(storage, {"path": "s/c.md", "pattern": "a+b", "regex": "yes"})
        == "line 1, offset 0: a+b"
    )


async def test_a_regular_expression_is_used_if_requested(storage):
    found = await search(
        storage, {"path": "s/a.md", "pattern": r"^line \d7:", "regex": True, "limit": 3}
    )

    seen = [line.split(":")[0] for line in found.split("\n")[:3]]
    assert seen == [f"line {n}, offset {TEXT.index(f'line {n}:')}" for n in (17, 27, 37)]


async def test_more_matches_than_the_limit_are_mentioned(storage):
    found = await search(storage, {"path": "s/a.md", "pattern": "FAILED", "limit": 2})

    assert len(found.split("\n")) == 3
    assert found.endswith("\n[Only the first 2 matches are shown.]")


async def test_all_matches_of_a_file_of_one_line_are_found(storage):
    line = "".join(f"{n:06d} {'needle' if n % 1000 in (5, 6) else 'straw'} " for n in range(5000))
    await storage.write([("s/one.md", line)])

    found = (await search(storage, {"path": "s/one.md", "pattern": "needle"})).split("\n")

    assert len(found) == 5
    for number, told in enumerate(found):
        offset, shown = re.fullmatch(r"line 1, offset (\d+): (.*)", told).groups()  # type: ignore[union-attr]
        assert line[int(offset) :].startswith(shown)
        assert f"{number * 1000 + 5:06d} needle" in shown
        assert len(shown) <= 400


async def test_a_line_that_fits_is_shown_whole(storage):
    line = "x" * 390 + " needle"
    await storage.write([("s/one.md", line)])

    assert (
        await search(storage, {"path": "s/one.md", "pattern": "needle"})
        == f"line 1, offset 0: {line}"
    )


async def test_a_search_without_a_match_reports_it(storage):
    assert (
        await search(storage, {"path": "s/a.md", "pattern": "nowhere"})
        == "[No line matches 'nowhere'.]"
    )


async def test_an_answer_never_exceeds_its_limit(storage):
    found = await search(
        storage, {"path": "s/a.md", "pattern": "line", "limit": 100}, max_chars=300
    )

    assert found.endswith("\n[Cut at 300 characters.]")
    assert len(found) < 350


@pytest.mark.parametrize("pattern", ["(", "[a", "*", "(?P<x", "(" * 1000])
async def test_an_invalid_regular_expression_is_reported(storage, pattern):
    with pytest.raises(ToolInputError, match="pattern is no regular expression"):
        await search(storage, {"path": "s/a.md", "pattern": pattern, "regex": True})


async def test_a_pattern_that_is_too_long_is_refused(storage):
    with pytest.raises(ToolInputError, match="pattern has 1001 characters"):
        await search(storage, {"path": "s/a.md", "pattern": "x" * 1001})


@pytest.mark.parametrize(
    "text", ["a" * 60 + "!", ("a" * 18 + "!\n") * 20_000], ids=["line", "lines"]
)
async def test_a_pattern_that_would_run_for_ever_is_stopped(storage, monkeypatch, text):
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 0.05)
    await storage.write([("s/evil.md", text)])

    with pytest.raises(ToolInputError, match=r"the search took longer than 0\.05 s"):
        await search(storage, {"path": "s/evil.md", "pattern": r"(a|aa)+$", "regex": True})


HOSTILE_PATTERNS = [
    "((a{500}){500}){20}",
    "((((a{99}){99}){99}){99}){99}",
    "(?:(?:x{1,200}){1,200}){1,200}",
    "(?(DEFINE)(?<a>(?&a)))(?&a)",
    "(?R)*a",
    "(?:hello){e<=40}",
    "(?b)(?:a+b+c+){e<=9}z",
    "(?<=(a|aa)+)!",
    "(?<!(?:(?:a{300}){300}){30})b",
    "(?>(a+)+)+!",
    "(?:a|b|ab)*+c",
    "|".join(f"{number:03d}.*x" for number in range(110)),
    "[[a-z]--[aeiou]&&[^x]||[0-9]]{400}{400}",
    r"\L<missing>",
    "(?V1)[[a-z]~~[b-y]]+$",
    "a**",
    "(" * 400 + ")" * 400,
    "(?P<n>a)(?P=n){4000000000}",
    r"\p{nothing}",
    "(?i)" + "ß" * 900,
    "\0",
    "\ud800",
]


@pytest.mark.parametrize("pattern", HOSTILE_PATTERNS)
async def test_no_pattern_of_the_model_raises(storage, monkeypatch, pattern: str):
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 0.2 if NIGHTLY else 0.05)
    await storage.write([("s/evil.md", "hello world\n" + "a" * 60 + "!\n" + "ab" * 40)])
    call = tool_use(
        "t1", "search_offloaded", {"path": "s/evil.md", "pattern": pattern, "regex": True}
    )

    result = await answer(call, tools(storage))

    assert result is not None
    assert isinstance(result["content"], str)


def compile_nothing(*_: object, **__: object):
    raise AssertionError("a pattern of the model is compiled in this process")


@pytest.mark.parametrize("pattern", HOSTILE_PATTERNS[:6])
async def test_no_pattern_of_the_model_is_compiled_in_this_process(
    storage, monkeypatch, pattern: str
):
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 0.05)
    monkeypatch.setattr("regex.compile", compile_nothing)
    call = tool_use("t1", "search_offloaded", {"path": "s/a.md", "pattern": pattern, "regex": True})

    result = await answer(call, tools(storage))

    assert result is not None
    assert result["content"]


async def test_a_pattern_that_takes_all_memory_is_stopped(storage, monkeypatch):
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 20.0)
    monkeypatch.setattr(module, "_SEARCH_MEMORY_BYTES", 128 * 2**20)

    with pytest.raises(ToolInputError, match="took too much memory"):
        await search(storage, {"path": "s/a.md", "pattern": "((a{500}){500}){500}", "regex": True})


async def test_if_no_process_can_be_started_the_answer_advises_a_literal_search(
    storage, monkeypatch
):
    monkeypatch.setattr(sys, "executable", "/no/such/python")

    with pytest.raises(ToolInputError, match="search for a literal text"):
        await search(storage, {"path": "s/a.md", "pattern": "x", "regex": True})
    assert "FAILED" in await search(storage, {"path": "s/a.md", "pattern": "FAILED"})


@example("aaaaaaa\na", "a", 3, 0)  # the part shown of a long line ends with it
@given(
    st.text("ab\n", max_size=40),
    st.text("ab", min_size=1, max_size=3),
    st.integers(1, 5),
    st.integers(0, 3),
)
def test_a_literal_search_finds_the_same_as_a_regular_expression(
    text: str, pattern: str, limit: int, context: int
):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(edits, "LINE_CHARS", 6)

        found = edits.literal_matches(pattern, text, limit, context)

        assert found == list(edits.regex_matches([pattern, str(limit), str(context), text]))


@given(st.lists(st.sampled_from(["x", "", "y" * 9, "z y"]), max_size=30), st.integers(0, 3))
def test_with_lines_around_them_all_matches_are_shown_and_no_line_twice(lines, context):
    text = "\n".join(lines)

    found = edits.literal_matches("x", text, 99, context)

    matches = {index for index, line in enumerate(lines) if line == "x"}
    shown: list[int] = []
    for each in found:
        place, excerpt = each.split(": ", 1)
        number, offset = map(int, re.findall(r"[0-9]+", place))
        assert text[offset:].startswith(excerpt)
        shown += range(number - 1, number + excerpt.count("\n"))
    assert shown == sorted(set(shown))
    assert matches <= set(shown)
    assert all(any(abs(line - match) <= context for match in matches) for line in shown)


async def test_lines_around_a_match_are_shown_if_requested(storage):
    found = await search(storage, {"path": "s/a.md", "pattern": "line 3:", "context": 1})

    lines = TEXT.split("\n")
    assert found == f"line 2, offset {len(lines[0]) + 1}: " + "\n".join(lines[1:4])


async def test_a_search_in_a_text_above_the_limit_mentions_it(storage, monkeypatch):
    monkeypatch.setattr(module, "_MAX_SEARCH_CHARS", 200)

    found = await search(storage, {"path": "s/a.md", "pattern": "line 1:"})

    remark = f"[Only the first 200 of {len(TEXT)} characters were searched.]"
    assert found == f"line 1, offset 0: {TEXT.splitlines()[0]}\n{remark}"


async def test_a_cancelled_search_does_not_wait_for_its_end(storage, monkeypatch):
    monkeypatch.setattr(module, "_SEARCH_SECONDS", 1.0)
    await storage.write([("s/evil.md", "a" * 60 + "!")])

    with anyio.move_on_after(0.05) as scope:
        await search(storage, {"path": "s/evil.md", "pattern": r"(a|aa)+$", "regex": True})

    assert scope.cancelled_caught


# Answering ----------------------------------------------------------------------------------------


async def test_the_result_of_a_call_has_the_id_of_the_call(storage):
    for call in (
        tool_use("t1", "read_offloaded", {"path": "s/a.md"}),
        ToolUseBlock(type="tool_use", id="t1", name="read_offloaded", input={"path": "s/a.md"}),
    ):
        assert await answer(call, tools(storage)) == {
            "type": "tool_result",
            "tool_use_id": "t1",
            "content": TEXT,
        }


@pytest.mark.parametrize("name", ["read_offload", "READ_OFFLOADED", "", "a\ud800\n" * 500, None, 7])
async def test_a_call_of_an_unknown_tool_is_answered_with_the_available_names(storage, name):
    call = {**tool_use("t1", "bash"), "name": name}

    result = await answer(call, tools(storage), others=["bash"])

    assert result is not None
    text = str(result["content"])
    assert (result["tool_use_id"], result["is_error"]) == ("t1", True)
    assert text.endswith("there are: read_offloaded, search_offloaded, bash")
    assert len(text) < 250
    assert text.isprintable()


async def test_a_call_of_any_name_is_answered_without_tools():
    result = await answer(tool_use("t1", "bash"), [])

    assert result is not None
    assert result["content"] == "there is no tool 'bash'; there are: none"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "text", "text": "hi"},
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        tool_use("t1", "bash"),
    ],
    ids=lambda block: block["type"],
)
async def test_other_blocks_and_calls_of_other_tools_are_left_to_the_loop(storage, block):
    for others in (["bash"], ("edit", "bash"), {"bash": 1}, iter(["bash"])):
        assert await answer(block, tools(storage), others=others) is None


async def test_other_names_given_as_one_text_are_refused(storage):
    with pytest.raises(SettingsError, match="others is 'bash'; give a list of names"):
        await answer(tool_use("t1", "bash"), tools(storage), others="bash")


async def test_a_tool_of_the_user_works_like_those_of_ctxpipe():
    async def echo(arguments: Mapping[str, object]) -> str:
        return str(arguments["text"])

    tool = Tool({"name": "echo", "input_schema": {"type": "object"}}, echo)

    assert await tool({"text": "hi"}) == "hi"
    assert await answer(tool_use("t1", "echo", {"text": "hi"}), [tool]) == tool_result("t1", "hi")


@pytest.mark.parametrize(
    "given",
    [
        *({}, None, ["s/a.md"], '{"path": "s/a.md"}', {"path": "gone.md"}),
        *({"path": "\0", "offset": 1}, {"path": "x" * 10**6}),
        *({"path": "s/a.md", "offset": -(10**5000)}, {"path": "s/a.md", "limit": [1] * 10**5}),
    ],
)
@pytest.mark.parametrize("number", [0, 1], ids=["read", "search"])
async def test_a_result_for_wrong_arguments_is_a_short_error(storage: LocalStorage, number, given):
    tool = tools(storage)[number]
    call = {**tool_use("t1", tool.name), "input": given}
    made = ToolUseBlock.model_construct(type="tool_use", id="t1", name=tool.name, input=given)

    for result in (await tool.result(call), await tool.result(made), await answer(call, [tool])):
        assert result is not None
        assert (result["tool_use_id"], result["is_error"]) == ("t1", True)
        assert 0 < len(str(result["content"])) < 500
        assert await tool.text(given) == result["content"]


async def test_text_returns_the_answer_of_the_tool(storage: LocalStorage):
    [path] = await storage.write([("s/a.md", "first\nsecond")])
    reader, search, *_ = tools(storage)

    assert await reader.text({"path": path}) == await reader({"path": path})
    found = await search.text({"path": path, "pattern": "second"})
    assert found == await search({"path": path, "pattern": "second"})


async def test_text_returns_a_picture_as_a_block():
    picture = {"type": "image", "source": {"type": "url", "url": "https://a.example/b.png"}}

    async def look(arguments: Mapping[str, object]) -> Any:
        return [picture]

    tool = Tool({"name": "look", "input_schema": {"type": "object"}}, look)
    assert await tool.text({}) == [picture]


async def answered(handle: Callable[[Mapping[str, object]], Awaitable[str]]) -> Any:
    """The result of a tool that does *handle*."""
    tool = Tool({"name": "mine", "input_schema": {"type": "object"}}, handle)
    return await tool.result(tool_use("t1", "mine"))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RecursionError(),
        KeyError("path"),
        StorageError(5, "input/output error at /srv/secret"),
        OSError(),
    ],
)
async def test_any_error_of_a_handler_becomes_a_result_without_details(error: Exception, caplog):
    async def fail(_: Mapping[str, object]) -> str:
        raise error

    result = await answered(fail)

    assert result["is_error"] is True
    assert "/srv/secret" not in str(result["content"])
    records = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert records == [f"the tool mine failed: {type(error).__name__}"]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ToolInputError("no such row"), "no such row"),
        (ToolInputError(""), "an argument is invalid"),
        (OSError("/srv/secret"), "the tool failed (OSError); try something else"),
        (TypeError("wrong"), "the tool failed (TypeError); try something else"),
    ],
    ids=str,
)
async def test_text_returns_any_error_of_a_handler_as_words_for_the_model(error, said):
    async def fail(_: Mapping[str, object]) -> str:
        raise error

    tool = Tool({"name": "mine", "input_schema": {"type": "object"}}, fail)
    assert await tool.text({}) == said


@pytest.mark.parametrize("words", ["", " \n", "no such row \ud800"])
async def test_an_error_for_the_model_always_has_text_that_can_be_sent(words):
    async def refuse(_: Mapping[str, object]) -> str:
        raise ToolInputError(words)

    result = await answered(refuse)

    assert result["is_error"] is True
    assert str(result["content"]).strip()
    assert str(result["content"]).isprintable()


FAILED = tool_result("t1", "the tool failed (TypeError); try something else", is_error=True)


@pytest.mark.parametrize(
    ("said", "result"),
    [
        *((said, FAILED) for said in (None, b"row", {"row": 1}, 5, ["row"])),
        ("half of a pair: \ud83d", tool_result("t1", "half of a pair: \ufffd")),
    ],
)
async def test_any_answer_of_a_handler_is_accepted_by_the_api(said, result: dict[str, Any]):
    async def say(_: Mapping[str, object]) -> str:
        return cast("str", said)

    assert await answered(say) == result


async def test_a_cancelled_call_is_raised_and_gives_no_result():
    async def wait(_: Mapping[str, object]) -> str:
        await anyio.sleep_forever()
        return ""

    with anyio.move_on_after(0.01) as scope:
        await answered(wait)

    assert scope.cancelled_caught


# Other storages -----------------------------------------------------------------------------------


class Rows:
    """A storage like a table of rows: it reads what it is asked for and knows no sessions."""

    def __init__(self, **texts: str):
        self.texts = {key.replace("__", "/") + ".md": text for key, text in texts.items()}
        self.asked: list[str] = []

    async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
        self.asked.append(location)
        text = self.texts.get(location)
        if text is None:
            raise StorageError(2, "no such row")
        return Page(text[offset : None if limit is None else offset + limit], offset, len(text))


async def test_any_text_reader_can_be_used():
    reading, searching, *_ = offload_tools(Rows(s__a=TEXT), max_chars=50)

    assert str(await reading({"path": "./s/a.md"})).startswith(
        TEXT[:50] + "\n[Characters 0 to 50 of"
    )
    assert str(await searching({"path": "s/a.md", "pattern": "line 7:"})).startswith(
        "line 7, offset"
    )


@pytest.mark.parametrize(
    "path",
    [
        "s/a.md",
        "./s/a.md",
        "a.md",
        "/data/s/a.md",
        "s3://bucket/pre/s/a.md",
        "/mnt/results/a.md",
        "ctxpipe://s/a.md",
    ],
)
async def test_a_session_reads_its_own_texts_in_any_printed_form(path):
    rows = Rows(s__a=TEXT, t__a="of another session")

    assert await offload_tools(rows, session_id="s")[0]({"path": path}) == TEXT
    assert rows.asked == ["s/a.md"]


@pytest.mark.parametrize(
    "path",
    [
        "t/b.md",
        "./t/b.md",
        "s/../t/b.md",
        "../t/b.md",
        "..",
        ".",
        "/",
        "",
        "s/",
        "t/..",
        "%2e%2e/t/b.md",
        "s/%2e%2e%2ft%2fb.md",
        "s\\..\\t\\b.md",
        "b.md\0",
        "b.md\n",
        "s/b.md?x=t/b.md",
        "*.md",
        "s/.b.md",
        "t/b.md.",
        "' OR 1=1 --",
        "\ud800.md",
        "ｔ／b.md",
        "ctxpipe://t/b.md",
        "ctxpipe://s/../t/b.md",
        "ctxpipe:///t/b.md",
        "ctxpipe://b.md",
        "ctxpipe://s",
        "ctxpipe://s//b.md",
        "x" * 100_000,
    ],
)
async def test_in_a_session_no_path_reaches_another(path):
    rows = Rows(t__b="of another session", b="of none")
    call = tool_use("t1", "read_offloaded", {"path": path})

    result = await offload_tools(rows, session_id="s")[0].result(call)

    assert result.get("is_error") is True
    assert all(location.startswith("s/") and "/" not in location[2:] for location in rows.asked)


async def test_the_keys_of_a_storage_with_a_key_method_are_used():
    class Numbered(Rows):
        def key(self, location: str) -> str:
            return {"row:1": "s/a.md", "row:2": "t/b.md", "row:3": "s/../t/b.md"}[location]

    rows = Numbered(s__a=TEXT, t__b="of another session")
    reading, *_ = offload_tools(rows, session_id="s")

    assert await reading({"path": "row:1"}) == TEXT
    for path in ("row:2", "row:3", "row:4"):
        result = await reading.result(tool_use("t1", "read_offloaded", {"path": path}))
        assert result.get("is_error") is True
    assert rows.asked == ["s/a.md"]


async def test_an_error_of_a_users_reader_becomes_a_result():
    class Down(Rows):
        async def read(self, location: str, /, offset: int = 0, limit: int | None = None) -> Page:
            raise ConnectionError(f"db.internal:5432 {location} {offset} {limit}")

    for tool in offload_tools(Down(), session_id="s"):
        result = await tool.result(tool_use("t1", tool.name, {"path": "s/a.md", "pattern": "x"}))
        assert (result["is_error"], result["content"]) == (
            True,
            "the tool failed (ConnectionError); try something else",
        )


# The SDK's tool runner ----------------------------------------------------------------------------


@needs_middleware
async def test_the_tool_runner_of_the_sdk_accepts_the_tools(storage):
    script = testing.answer_with(
        testing.tool_use("read_offloaded", {"path": "s/a.md"}, "t1"),
        testing.tool_use(
            "search_offloaded", {"path": "s/a.md", "pattern": "FAILED", "limit": 1}, "t2"
        ),
        testing.tool_use("read_offloaded", {"path": "t/b.md"}, "t3"),
        testing.tool_use(
            "search_offloaded", {"path": "s/a.md", "pattern": "(", "regex": True}, "t4"
        ),
        testing.tool_use("search_offloaded", {"self": 1, "input": 2, "path": 3}, "t5"),
    )
    shaping = ctxpipe_middleware(ContextPipeline(), session_id="s")
    served = testing.MessagesServer([script, "done"])
    async with messages_api(served, middleware=[shaping]) as (server, client):
        runner = client.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=100,
            tools=as_beta_tools(offload_tools(storage, session_id="s")),
            messages=[{"role": "user", "content": "go"}],
        )
        await runner.until_done()

    first, second = (request for request in server.requests if not request.problems)
    given = offload_tools(storage, session_id="s")
    assert first.body["tools"] == [tool.definition for tool in given]
    answered: Any = second.body["messages"][-1]["content"]
    results = {block["tool_use_id"]: block for block in answered}
    assert results["t1"]["content"] == TEXT
    assert results["t2"]["content"].startswith("line 7, offset")
    assert {name for name, block in results.items() if block.get("is_error")} == {"t3", "t4", "t5"}
    assert "there is no offloaded text 't/b.md'" in results["t3"]["content"]
