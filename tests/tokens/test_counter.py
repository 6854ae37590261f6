"""The token counter: exact, without errors, and with each distinct text encoded only once."""

from __future__ import annotations

import json
import math
import random
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
import stock
import tiktoken
from histories import assistant, conversation, histories, step, system, tool_result, tool_use, user
from hypothesis import example, given
from hypothesis import strategies as st
from recorded import NIGHTLY, sample

from ctxpipe.errors import SettingsError
from ctxpipe.messages import Message, compact_json
from ctxpipe.tokens import TokenCounter, as_counter, vocabulary

NAMES = ["cl100k_base", "o200k_base"]
needs_speed_at_runs = pytest.mark.skipif(
    vocabulary.is_slow_at_runs(),
    reason=f"tiktoken {tiktoken.__version__} takes minutes for the exact number of a long run",
)
each_encoding = pytest.mark.parametrize("name", NAMES)

WORDS = [
    *("the ", "café", "naïve ", "it's", "DON'T", "中文字符", "日本語", "한국어 ", "ไทย", "नमस्ते"),
    *("العربية ", "Привет, ", "😀", "👨‍👩‍👧", "🏳️‍🌈", "\ud800", "\udfff", "\ud83d\ude00", "\x00"),
    *("\x07", "\x1b[31m", "\x7f", "\ufeff", "\u200b", "\u0301", " ", "   ", "\t", "\n", "\r\n"),
    *("\n\n\n", "\u00a0", "\u3000", "\u2028", "    ", "1", "1234567", "3.14", "²", "٣"),
    *("<|endoftext|>", "<|fim_prefix|>", "def f(x):\n", "return ", "/* */", "//", "{}", '"', "\\"),
    *("=" * 40, "-" * 9),
]


# Exact --------------------------------------------------------------------------------------------


@each_encoding
def test_random_strings_count_as_in_stock_tiktoken(name: str):
    chance, ours, theirs = random.Random(20), TokenCounter(name), stock.encoding(name)
    any_character = [
        *map(chr, range(0x250)),
        *map(chr, range(0x3000, 0x3100)),
        *map(chr, range(0x1F600, 0x1F640)),
    ]
    for _ in range(20_000 if NIGHTLY else 4_000):
        text = "".join(
            chance.choices(chance.choice([WORDS, any_character]), k=chance.randint(0, 30))
        )

        assert ours.text(text) == len(theirs.encode(text, disallowed_special=())), ascii(text)


@each_encoding
@pytest.mark.shared
@pytest.mark.usefixtures("shared")
def test_every_text_of_a_recorded_conversation_counts_as_in_stock_tiktoken(name: str):
    ours, theirs = TokenCounter(name), stock.encoding(name)
    texts = {text for file in sample(8) for text in strings(file)}

    assert len(texts) > 2_000
    for text in texts:
        assert ours.text(text) == len(theirs.encode(text, disallowed_special=()))


def strings(file: Path) -> list[str]:
    """Every string in the messages of a transcript, at any depth, but for encoded data."""
    found: list[str] = []

    def collect(value: Any):
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            for item in value:
                collect(item)
        elif isinstance(value, dict):
            for key, item in value.items():
                if key not in ("data", "signature"):
                    collect(item)

    for line in file.read_text(encoding="utf-8").splitlines():
        collect(json.loads(line).get("content"))
    return found


@needs_speed_at_runs
@each_encoding
def test_a_text_so_long_that_it_is_counted_in_parts_counts_as_a_whole(name: str):
    chance = random.Random(3)
    lines = [
        "    if x == 12:\n",
        "\n",
        "日志 2026-11-20：完成。\n",
        "'s",
        "aGVsbG8gd29ybGQ",
        " " * 3000,
        "\t" * 2000,
        "…" * 50,
    ]
    text = "".join(chance.choices(lines, k=2_000))

    assert len(text) > 10 * 32_768
    assert TokenCounter(name).text(text) == stock.count(name, text)


@given(st.text(st.characters()))
def test_no_text_makes_the_counter_raise(text: str):
    assert 0 <= TokenCounter().text(text) <= len(text.encode(errors="surrogatepass"))


@each_encoding
def test_text_that_looks_like_a_special_token_is_text(name: str):
    assert TokenCounter(name).text("<|endoftext|>") > 5


@each_encoding
@pytest.mark.parametrize("end", ["", "x", "\n"])
def test_a_million_blanks_are_counted(name: str, end):
    # 128 blanks are one token, as shown for shorter runs
    rest = stock.count(name, " " * 9_984 + end)

    tokens = TokenCounter(name).text(" " * (9_984 + 128 * 8_000) + end)

    assert tokens == pytest.approx(rest + 8_000, abs=1)


@needs_speed_at_runs
@each_encoding
def test_a_text_that_tiktoken_cannot_encode_is_counted_in_parts(name: str):
    hopeless = " \u00a0" * 600_000 + "x"
    with pytest.raises(ValueError, match="Max stack size"):
        stock.count(name, hopeless)

    half = stock.count(name, " \u00a0" * 300_000)

    assert TokenCounter(name).text(hopeless) == pytest.approx(2 * half, rel=0.001)


def test_an_error_of_an_encoding_for_a_short_text_is_raised():
    class Broken(tiktoken.Encoding):
        def encode(self, *_: Any, **__: Any) -> list[int]:
            raise ValueError("always")

    broken = stock.encoding("cl100k_base")
    mine = Broken(
        "broken",
        pat_str=broken._pat_str,
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={},
    )

    with pytest.raises(ValueError, match="always"):
        TokenCounter(mine).text("hello")


def test_lone_surrogates_count_like_the_replacement_character():
    assert TokenCounter().text("a\ud800b") == TokenCounter().text("a\ufffdb")


# Which tokenizer ----------------------------------------------------------------------------------


def test_an_encoding_that_does_not_ship_may_be_passed_in():
    letters = tiktoken.Encoding(
        "bytes",
        pat_str=r"(?s).",
        mergeable_ranks={bytes([i]): i for i in range(256)},
        special_tokens={},
    )

    mine = TokenCounter(letters)

    assert mine.text("hello é" * 20_000) == 8 * 20_000
    assert mine.over("hello", 4)
    assert not mine.over("hello", 5)


async def test_a_function_of_the_user_works_everywhere():
    words = TokenCounter(lambda text: len(text.split()))
    history = conversation(
        user("one two"), step("t1", "bash", {"command": "ls"}, "three four five")
    )

    assert words.text("one two three") == 3
    assert words.total(history) == await words.count(history) == 2 + 1 + 1 + 1 + 3
    assert await words.texts(["a b", "c " * 50_000]) == [2, 50_000]
    assert words.over(history, 7)
    assert not words.over(history, 8)


def test_a_function_may_count_more_tokens_than_there_are_bytes():
    assert TokenCounter(lambda _: 1_000_000).over("short", 999_999)


def test_a_function_that_returns_tokens_instead_of_their_number_is_refused():
    with pytest.raises(SettingsError, match="answers with list"):
        TokenCounter(stock.encoding("cl100k_base").encode).text("hello")  # type: ignore[arg-type]


def test_a_function_may_return_any_kind_of_whole_number():
    class Whole:
        def __index__(self) -> int:
            return 7

    assert TokenCounter(lambda _: Whole()).text("hello") == 7  # type: ignore[arg-type, return-value]


def test_none_as_counter_means_the_shared_one():
    assert as_counter(None) is as_counter(None)


def test_as_counter_returns_a_counter_itself_and_wraps_a_function():
    mine = TokenCounter()

    assert as_counter(mine) is mine
    assert as_counter(len).text("four") == 4


def test_the_repr_of_a_counter_names_its_encoding():
    assert repr(TokenCounter("o200k_base")) == "TokenCounter('o200k_base')"
    assert "len" in repr(TokenCounter(len))


# Each text once -----------------------------------------------------------------------------------


def test_each_distinct_text_is_encoded_once():
    ours = TokenCounter()
    history = conversation(
        user("hello"), step("t1", "bash", {"command": "ls"}, "a.py b.py"), user("hello")
    )
    texts = ["hello", "t1", "bash", '{"command":"ls"}', "a.py b.py"]

    for _ in range(5):
        ours.total(history)

    assert ours.encoded_chars == sum(map(len, texts))


def test_a_text_encoded_for_a_comparison_is_remembered():
    ours, theirs = TokenCounter(), TokenCounter(len)

    for counter in (ours, theirs):
        assert counter.over("a text of some words", 1)
        assert counter.text("a text of some words") > 1
        assert counter.encoded_chars == len("a text of some words")


def test_a_text_that_comes_twice_is_encoded_once_for_a_comparison():
    ours, history = TokenCounter(len), [user("twice"), user("twice"), user("once")]

    assert not ours.over(history, 14)
    assert ours.encoded_chars == len("twice") + len("once")


def test_a_text_that_comes_twice_in_a_block_is_encoded_once_for_an_estimate():
    ours = TokenCounter(len)

    assert ours.block_estimate(tool_use("twice", "twice", {})) == 2 * len("twice") + len("{}")
    assert ours.encoded_chars == len("twice") + len("{}")


def test_a_history_that_was_rebuilt_from_json_is_not_encoded_again():
    ours, history = (
        TokenCounter(),
        conversation(user("hello"), step("t1", "bash", {"command": ["ls", "-l"]}, "a.py")),
    )
    first, encoded = ours.total(history), ours.encoded_chars

    assert ours.total(json.loads(json.dumps(history))) == first
    assert ours.encoded_chars == encoded


@pytest.mark.parametrize(
    "edit",
    [
        lambda given: given.update(command="rm -rf everything there is"),
        lambda given: given["options"].append("a rather long option"),
        lambda given: given.pop("options"),
    ],
)
def test_an_edited_tool_input_is_counted_again(edit):
    given_input: dict[str, Any] = {"command": "ls", "options": ["-l"]}
    block, ours = {**tool_use("t1", "bash"), "input": given_input}, TokenCounter()
    ours.block(block)

    edit(given_input)

    assert ours.block(block) == sum(map(ours.text, ("t1", "bash", compact_json(given_input))))


async def test_the_memo_stays_within_its_limit_of_bytes():
    ours = TokenCounter(memo_bytes=100_000)
    for index in range(5_000):
        ours.message(
            assistant(
                f"message {index} " * 5, tool_use(f"t{index}", "bash", {"command": f"ls {index}"})
            )
        )

        assert ours.memo_bytes <= 100_000
    assert ours.memo_bytes > 30_000


def test_a_counter_without_a_memo_still_counts_everything():
    ours = TokenCounter(memo_bytes=0)

    assert ours.total(conversation(user("hello world"), step("t1", "bash", {}, "done"))) > 4
    assert ours.memo_bytes == 0


# Off the loop -------------------------------------------------------------------------------------


@given(histories())
async def test_counting_off_the_loop_gives_the_same_number(history: list[Message]):
    ours = TokenCounter()

    assert await ours.count(history) == ours.total(history)
    assert await ours.counts(history) == [ours.message(message) for message in history]


class Threads:
    """A counter's function that notes in which thread it ran."""

    def __init__(self) -> None:
        self.seen: list[threading.Thread] = []

    def __call__(self, text: str) -> int:
        self.seen.append(threading.current_thread())
        return len(text)


async def test_much_new_text_is_counted_in_one_worker_thread():
    threads = Threads()

    await TokenCounter(threads).texts([f"{number} " * 1_000 for number in range(40)])

    assert len(threads.seen) == 40
    assert set(threads.seen) != {threading.current_thread()}
    assert len(set(threads.seen)) == 1


async def test_little_new_text_is_counted_on_the_event_loop():
    threads = Threads()

    await TokenCounter(threads).texts(["short"] * 40)

    assert threads.seen == [threading.current_thread()]


async def test_text_of_other_scripts_is_counted_in_a_thread_sooner():
    threads = Threads()

    await TokenCounter(threads).texts(["中文" * 9_000])

    assert threads.seen[0] is not threading.current_thread()


async def test_remembered_text_needs_no_thread():
    threads = Threads()
    ours, text = TokenCounter(threads), "long " * 50_000
    await ours.texts([text])
    threads.seen.clear()

    assert await ours.texts([text, text]) == [len(text)] * 2
    assert threads.seen == []


async def test_an_encoding_that_is_not_loaded_is_loaded_off_the_loop(
    monkeypatch,
):
    threads: list[threading.Thread] = []

    def load(name: str) -> tiktoken.Encoding:
        threads.append(threading.current_thread())
        return stock.encoding(name)

    monkeypatch.setattr("ctxpipe.tokens.vocabulary._encodings", {})
    monkeypatch.setattr("ctxpipe.tokens.vocabulary.load", load)
    await TokenCounter().count([user("hello")])
    await TokenCounter().warm()

    assert len(threads) == 2
    assert threading.current_thread() not in threads


async def test_a_warm_counter_loads_nothing_more(monkeypatch):
    ours = TokenCounter()
    await ours.warm()
    monkeypatch.delattr("ctxpipe.tokens.vocabulary._build")

    await ours.warm()

    assert ours.text("hello") == 1


async def test_a_cancelled_turn_does_not_wait_for_a_count():
    started, finish, finished = threading.Event(), threading.Event(), threading.Event()

    def slow(text: str) -> int:
        started.set()
        finish.wait(10)
        finished.set()
        return len(text)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(TokenCounter(slow).texts, ["x" * 50_000])
        await anyio.to_thread.run_sync(started.wait, 10)
        tasks.cancel_scope.cancel()
    was_running = started.is_set() and not finished.is_set()
    finish.set()

    assert was_running


# Questions that need no full count ----------------------------------------------------------------


@given(histories(), st.integers(-1, 400))
def test_over_agrees_with_the_full_count(history: list[Message], limit: int):
    assert TokenCounter().over(history, limit) == (TokenCounter().total(history) > limit)


@given(st.lists(st.sampled_from(WORDS), max_size=40).map("".join), st.integers(-1, 60))
def test_over_agrees_with_the_full_count_of_a_text(text: str, limit: int):
    assert TokenCounter().over(text, limit) == (TokenCounter().text(text) > limit)


def test_system_prompt_and_tools_count_for_over():
    ours, tools = (
        TokenCounter(),
        [{"name": "bash", "description": "runs a command", "input_schema": {}}],
    )
    total = ours.total([user("hello")], system="be brief", tools=tools)

    assert not ours.over([user("hello")], total, system="be brief", tools=tools)
    assert ours.over([user("hello")], total - 1, system="be brief", tools=tools)


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ("short", 5, False),
        ("é" * 5, 10, False),
        ("", 0, False),
        ("x" * 1_290, 10, True),
        ("x", -1, True),
    ],
)
def test_a_comparison_that_bounds_decide_loads_no_encoding(text, limit, expected, monkeypatch):
    monkeypatch.delattr("ctxpipe.tokens.vocabulary.load")
    ours = TokenCounter()

    assert ours.over(text, limit) is expected
    assert ours.over([user(text)], limit) is expected


def test_over_stops_early():
    ours, text = TokenCounter(), "some line of text\n" * 100_000

    assert ours.over(text, 5_000)
    assert ours.encoded_chars < 100_000


def test_over_stops_at_the_message_that_decides():
    ours = TokenCounter()
    history = [user(f"message {index}: {'words ' * 2_000}") for index in range(100)]

    assert ours.over(history, 6_000)
    assert ours.encoded_chars < 6 * 13_000


# Messages -----------------------------------------------------------------------------------------


def test_empty_content_has_no_tokens():
    assert TokenCounter().total([]) == TokenCounter().total([user(""), user()]) == 0


@given(histories())
def test_a_history_counts_as_its_messages_and_a_message_as_its_blocks(
    history: list[Message],
):
    ours = TokenCounter()

    assert ours.total(history) == sum(map(ours.message, history))
    for message in history:
        if isinstance(message["content"], list):
            assert ours.message(message) == sum(map(ours.block, message["content"]))


def test_counting_changes_no_message():
    history = conversation(system("be"), user("hello"), step("t1", "bash", {"a": [1]}, "done"))
    before = json.dumps(history)

    TokenCounter().total(history)

    assert json.dumps(history) == before


async def test_system_prompt_and_tools_are_counted_once():
    ours, tools = (
        TokenCounter(),
        [{"name": "bash", "description": "runs a command", "input_schema": {"type": "object"}}],
    )
    await ours.warm()
    expected = ours.text("hello") + ours.text("be brief") + ours.text(compact_json(tools[0]))

    assert ours.total([user("hello")], system="be brief", tools=tools) == expected
    assert (
        await ours.count(
            [user("hello")], system=[{"type": "text", "text": "be brief"}], tools=tools
        )
        == expected
    )


def test_the_bounds_are_never_wrong():
    encoder = TokenCounter()._encoder
    for text in ["", "x", " " * 1_000, "é" * 9, "\ud83d\ude00", "\ud800", "中文", *WORDS]:
        tokens = stock.count("cl100k_base", text)
        assert encoder.at_least(text, 9) <= tokens <= encoder.at_most(text)
    assert TokenCounter(len)._encoder.at_most("x") == math.inf


@given(
    st.sampled_from(sorted(vocabulary.RANK_FILES)),
    st.text(st.sampled_from("aZ09 \t\n\x0b\x1c\x85\xa0'!/_中é\ud800\U0001f600")),
    st.integers(0, 40),
)
@example("o200k_base", "//\n//", 9)  # one token
@example("o200k_base", "/\n\xa0 \xa0", 1)
def test_no_text_has_more_words_than_tokens(encoding: str, text: str, enough: int):
    encoder = TokenCounter(encoding)._encoder

    assert encoder.at_least(text, enough) <= encoder.count(text)


def test_a_reply_of_the_sdk_counts_like_its_plain_form():
    from anthropic.types import TextBlock, ToolUseBlock

    plain = assistant("hello", tool_use("t1", "bash", {"command": "ls"}))
    objects: Any = [
        TextBlock(type="text", text="hello"),
        ToolUseBlock(type="tool_use", id="t1", name="bash", input={"command": "ls"}),
    ]

    assert TokenCounter().message(
        {"role": "assistant", "content": objects}
    ) == TokenCounter().message(plain)


def test_results_of_many_tools_count_each():
    ours = TokenCounter()
    message = user(*(tool_result(f"t{index}", f"result {index}") for index in range(5)))

    assert ours.message(message) == sum(ours.text(f"result {index}") for index in range(5))


def test_the_estimate_of_a_block_is_exact_for_remembered_and_short_texts():
    counter = TokenCounter()
    long = {"type": "text", "text": "some words of a long text " * 3_000}
    short = {"type": "text", "text": "a few words"}

    assert counter.block_estimate(long) == len(long["text"]) // 4
    assert counter.block_estimate(short) in (counter.block(short), len(short["text"]) // 4)
    assert counter.block_estimate(long) != counter.block(long)
    assert counter.block_estimate(long) == counter.block(long)
    assert counter.block_estimate(short) == counter.block(short)


def test_the_estimate_of_a_block_encodes_no_long_text():
    counter = TokenCounter()
    counter.text("warm")
    before = counter.encoded_chars

    counter.block_estimate({"type": "text", "text": "word " * 1_000_000})

    assert counter.encoded_chars == before


def test_a_text_too_large_for_the_memo_is_counted_once():
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    ours = TokenCounter(count, memo_bytes=8_000)
    assert [ours.text("x" * 8_000), ours.text("x" * 8_000)] == [8_000, 8_000]
    assert ours.text("y" * 8_000) == 8_000
    assert len(counted) == 2
    assert ours.memo_bytes < 1_000


@needs_speed_at_runs
def test_a_run_without_an_exact_cut_has_an_error_of_at_most_one_token_in_ten_thousand():
    letters = random.Random(1).choices("abcdefghijklmnopqrstuvwxyz", k=300_000)
    text = "".join(letters)
    exact = len(vocabulary.load("o200k_base").encode_ordinary(text))
    assert abs(TokenCounter("o200k_base").text(text) - exact) < exact / 10_000


@pytest.mark.parametrize("run", ["a", " ", "é"])
def test_a_long_run_is_counted_in_parts_if_tiktoken_is_slow_at_it(monkeypatch, run):
    text = f"before {run * 50_000} after"
    whole = TokenCounter().text(text)
    monkeypatch.setattr(tiktoken, "__version__", "0.12.0")
    counter = TokenCounter()
    longest: list[int] = []
    encode = tiktoken.Encoding.encode_ordinary

    def encoded(self: tiktoken.Encoding, part: str) -> list[int]:
        longest.append(len(part))
        return encode(self, part)

    monkeypatch.setattr(tiktoken.Encoding, "encode_ordinary", encoded)

    assert counter.text(text) == pytest.approx(whole, rel=0.01)
    assert max(longest) <= 4_096
