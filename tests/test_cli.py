"""The commands, as a person types them.

Mostly in this process, and for pipes and signals in one of their own.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from histories import PICTURE, assistant, conversation, step, tool_result, tool_use, user
from models import MODEL
from processes import prepared_python
from typer.testing import CliRunner

import ctxpipe
from ctxpipe._cli import app
from ctxpipe.messages import Message
from ctxpipe.tokens import TokenCounter

LOOP = [
    step(f"t{n}", "bash", {"command": f"make part_{n}"}, f"part_{n} is made\n" * 30)
    for n in range(4)
]
HISTORY = conversation(user("Make all parts."), *LOOP, assistant("Done."))


def run(*arguments: object, given: str | None = None) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=given)


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*prepared_python(), "-m", "ctxpipe", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, **options
    )


def lines(history: list[Message]) -> str:
    return "\n".join(map(json.dumps, history))


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.jsonl"
    path.write_text(lines(HISTORY), "utf-8")
    return path


# Replaying ----------------------------------------------------------------------------------------


def test_a_replay_prints_a_row_for_each_policy_and_what_its_words_mean(sound):
    done = run("replay", sound, "--compare", "none,compact,coding")
    assert done.exit_code == 0
    assert "sound.jsonl (cost in input tokens)" in done.stdout
    assert re.findall(r"^(none|compact|coding) +[\d,]+ ", done.stdout, re.MULTILINE) == [
        "none",
        "compact",
        "coding",
    ]
    assert "seen     the share of" in done.stdout


def test_with_a_model_costs_are_in_dollars(sound):
    done = run("replay", sound, "--model", MODEL)
    assert f"cost in dollars, {MODEL}" in done.stdout
    assert re.search(r"^none +\$\d+\.\d{2,} ", done.stdout, re.MULTILINE)


def test_a_price_for_reading_takes_the_place_of_the_models(tmp_path):
    path = tmp_path / "long.jsonl"  # long enough to be cached
    path.write_text(
        lines(conversation(user("word " * 3000), assistant("Yes."), user("So?"), assistant("No."))),
        "utf-8",
    )

    def cost(*options: object) -> float:
        told = json.loads(
            run("replay", path, "--json", "--compare", "none", "--model", MODEL, *options).stdout
        )
        return float(told["all"][0]["cost"])

    assert cost() == pytest.approx(cost("--read", 0.1))
    assert cost("--read", 0.5) > cost("--read", 0.1)


def test_json_holds_the_unit_each_file_the_sum_and_the_errors(sound, tmp_path):
    done = run("replay", sound, tmp_path / "none.jsonl", "--json", "--processes", 1)
    told = json.loads(done.stdout)
    assert told["unit"] == "input tokens"
    assert [row["policy"] for row in told["files"][str(sound)]] == ["none", "coding"]
    assert [row["calls"] for row in told["all"]] == [5, 5]
    assert list(told["errors"]) == [str(tmp_path / "none.jsonl")]
    assert done.exit_code == 1


@pytest.fixture
def billed(tmp_path: Path) -> Path:
    """The same conversation, whose replies tell what was billed."""
    path = tmp_path / "billed.jsonl"
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 1890,
        "cache_creation_input_tokens": 100,
    }
    told = [
        {**message, "usage": usage} if message["role"] == "assistant" else message
        for message in HISTORY
    ]
    path.write_text("\n".join(map(json.dumps, told)), "utf-8")
    return path


def test_replay_compares_the_usage_in_a_transcript_with_the_simulation(sound, billed):
    replayed = ("replay", billed, sound, "--processes", 1)
    printed = run(*replayed).stdout
    found = json.loads(run(*replayed, "--json").stdout)["read"]

    assert re.search(
        r"The usage of 5 calls reports \d+\.\d{3} times the prompt .* were 94\.5%, simulated",
        printed,
    )
    assert printed.count("The usage of") == 2  # that file's, and in all
    assert found[str(billed)]["calibration"]["billed_tokens"] == 5 * 2000
    assert found[str(sound)]["calibration"] is None


def test_usage_is_compared_only_with_the_replay_of_the_unchanged_history(billed):
    assert "The usage of" not in run("replay", billed, "--compare", "coding").stdout


def test_what_was_repaired_in_a_file_is_counted(tmp_path):
    torn = tmp_path / "torn.jsonl"
    torn.write_text(
        lines(
            conversation(
                user("Go."), assistant(tool_use("t1", "bash")), user("?"), assistant("Done.")
            )
        )
    )

    assert "torn.jsonl (cost in input tokens; 1 fault repaired)" in run("replay", torn).stdout
    assert json.loads(run("replay", torn, "--json").stdout)["read"][str(torn)]["repaired"] == 1


def test_strict_recall_leaves_out_what_only_a_chosen_line_shows(tmp_path):
    facts = [f"FAILED src/service_{n}.py: port {4000 + n} of host_{n} is in use" for n in range(40)]
    rest = "\nnothing more to say\n" * 60
    steps = (step(f"t{n}", "bash", {"command": f"look {n}"}, facts[n] + rest) for n in range(40))
    path = tmp_path / "long.jsonl"
    told = [*steps, assistant("\n".join(facts[:9]))]
    path.write_text(lines(conversation(user("Go."), *told)))
    config = tmp_path / "mine.toml"
    config.write_text('[[stage]]\nuse = "Collapse"\nmin_value = 1\n', "utf-8")

    done = run("replay", path, "--compare", f"none,{config}", "--json")

    row = json.loads(done.stdout)["all"][1]
    assert row["strict"] < row["seen"]


@pytest.mark.parametrize(("file", "name"), [("mine.toml", "mine"), ("none.toml", "none.toml")])
def test_a_pipeline_of_ones_own_is_compared_with_no_management(sound, tmp_path, file, name):
    config = tmp_path / file
    config.write_text('[[stage]]\nuse = "DirectOffload"\nmin_chars = 100\n', "utf-8")
    rows = json.loads(run("replay", sound, "--compare", f"none,{config}", "--json").stdout)["all"]
    assert [row["policy"] for row in rows] == ["none", name]
    assert rows[1]["peak"] < rows[0]["peak"]


def test_a_conversation_comes_through_standard_input(sound):
    done = run("replay", "-", given=lines(HISTORY))
    assert done.exit_code == 0
    assert "none" in done.stdout


def test_standard_input_may_stand_beside_files_in_several_processes(sound):
    done = process("replay", "-", sound, "--processes", 2, "--json", input=lines(HISTORY))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)["files"]
    assert told["-"] == told[str(sound)]


def test_a_page_is_written_and_named(sound, tmp_path):
    html = tmp_path / "report.html"
    done = run("replay", sound, "--html", html)
    assert done.exit_code == 0
    assert str(html) in done.stderr
    assert "sound.jsonl" in html.read_text("utf-8")


def test_a_page_that_cannot_be_written_is_told_before_the_work_begins(sound, tmp_path):
    for page, told in [
        (tmp_path / "no" / "r.html", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ]:
        done = run("replay", sound, "--html", page)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"ctxpipe: --html: {page}")
        assert told in done.stderr


def test_where_nothing_can_be_replayed_no_empty_page_is_left(tmp_path):
    nothing = tmp_path / "nothing.jsonl"
    nothing.write_text("[]")
    html = tmp_path / "report.html"
    assert run("replay", nothing, "--html", html).exit_code != 0
    assert not html.exists()


def test_a_page_behind_a_link_is_written_where_the_link_leads(sound, tmp_path):
    html, page = tmp_path / "report.html", tmp_path / "page.html"
    html.symlink_to(page)
    assert run("replay", sound, "--html", html).exit_code == 0
    assert html.is_symlink()
    assert "sound.jsonl" in page.read_text("utf-8")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_page_that_cannot_be_written_in_the_end_is_told(sound):
    done = run("replay", sound, "--html", "/dev/full")
    assert done.exit_code == 2
    assert "ctxpipe: --html: /dev/full cannot be written: No space left on device" in done.stderr


# Bad input ----------------------------------------------------------------------------------------

BAD = {
    "empty": (b"", "is empty"),
    "truncated": (lines(HISTORY).encode()[:-20], "this is not JSON"),
    "cut": (b'{"messages": [{"role": "user"', "this is not JSON"),
    "latin": (
        '{"role": "user", "content": "gr\u00fcn"}'.encode("latin-1"),
        "this is not UTF-8 text",
    ),
    "no turns": (b"[]", "holds no message"),
    "no reply": (lines(conversation(user("Hi."))).encode(), "holds no reply"),
    "long line": (lines(HISTORY[:1]).encode() + b"\n" + b"x" * 50_000_000, "line 2"),
    "deep": (b"[" * 100_000, "nested too deeply"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_in_one_sentence_and_the_other_file_goes_on(name: str, sound, tmp_path):
    content, told = BAD[name]
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(content)
    done = run("replay", bad, sound, "--processes", 1)
    assert done.exit_code == 1
    assert re.search(r"^none +[\d,]+ ", done.stdout, re.MULTILINE)
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"ctxpipe: {bad}")
    assert told in sentence


USABLE = {
    "no tool calls": conversation(user("Hi."), assistant("Hello.")),
    "pairs broken": [
        user("Hi."),
        assistant(tool_use("a")),
        user(tool_result("zzz")),
        assistant("Done."),
    ],
    "images only": conversation(
        user(PICTURE), assistant("A cat."), user(PICTURE, PICTURE), assistant("Two.")
    ),
}


@pytest.mark.parametrize("name", USABLE)
def test_an_odd_conversation_is_replayed_all_the_same(name: str, tmp_path):
    path = tmp_path / "odd.jsonl"
    path.write_text(lines(USABLE[name]), "utf-8")
    for command in (("replay",), ("inspect",), ("inspect", "--plan", "coding")):
        done = run(*command, path)
        assert (done.exit_code, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--compare", "none,nonsense"), "there is no policy 'nonsense'"),
        (
            ("--model", "nonsense-9"),
            "no prices are known for the model 'nonsense-9'; give another name, such as",
        ),
        (("--compare", "/nowhere.toml"), "cannot be read"),
        (("--compare", "none,"), "there is no policy ''"),
        (("--read", "-1"), "the price read is -1"),
        (("--read", "7"), "Invalid value for '--read'"),
        (("--scheduler", "nowhere"), "no Dask scheduler"),
        (("--nonsense",), "No such option"),
    ],
)
def test_a_misuse_is_told_in_a_sentence_with_exit_code_2(sound, arguments: tuple[str, ...], told):
    done = run("replay", sound, *arguments)
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


# Looking, planning, cleaning ----------------------------------------------------------------------


def test_inspect_tells_what_fills_the_context(sound):
    told = json.loads(run("inspect", sound, "--json", "--most", 1).stdout)["files"][str(sound)]
    assert told["kinds"]["tool results"] == max(told["kinds"].values())
    assert told["tools"][0][:2] == ["bash", 4]
    assert len(told["largest"]) == 1
    assert "largest blocks" in run("inspect", sound).stdout


def test_inspect_prints_no_table_of_tools_where_there_was_none(sound, tmp_path):
    talk = tmp_path / "talk.jsonl"
    talk.write_text(lines(conversation(user("Hi."), assistant("Hello."))), "utf-8")
    assert "by tool" in run("inspect", sound).stdout
    assert "by tool" not in run("inspect", talk).stdout


def test_inspect_prints_what_looks_like_markup_as_it_stands(tmp_path):
    path = tmp_path / "markup.jsonl"
    path.write_text(
        lines(conversation(user("[bold]x[/bold] [/nothing]"), assistant("Hm."))), "utf-8"
    )
    assert "[bold]x[/bold] [/nothing]" in run("inspect", path).stdout


@pytest.fixture
def three_bills(tmp_path: Path) -> Path:
    """Three turns; before the last one the cache has expired."""
    path = tmp_path / "bills.jsonl"
    rows: list[dict[str, Any]] = []
    for turn, (seconds, read) in enumerate(((0, 0), (10, 3000), (2000, 0))):
        usage = {
            "input_tokens": 0,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": 3000 * (turn + 1) - read,
        }
        rows.append({**user("word " * 3000), "timestamp": 1_700_000_000 + seconds})
        rows.append({**assistant("Yes."), "model": MODEL, "usage": usage})
    path.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    return path


def test_inspect_tells_why_the_cache_missed_and_what_that_cost(three_bills):
    told = run("inspect", three_bills, "--cache").stdout
    assert "3 requests, 16.7% of 18,000 tokens read from the cache" in told
    assert re.search(r"lifetime +1 +6,000 +\$0\.0345 +1,990 seconds passed", told)

    [found] = json.loads(run("inspect", three_bills, "--cache", "--json").stdout)["files"].values()
    [miss] = found["misses"]
    assert (miss["cause"], miss["request"], miss["tokens"]) == ("lifetime", 3, 6000)
    assert found["tallies"][0]["misses"] == 1


def test_inspect_says_when_the_cache_has_missed_nothing(three_bills):
    two_turns = "\n".join(three_bills.read_text("utf-8").splitlines()[:4])
    three_bills.write_text(two_turns, "utf-8")
    told = run("inspect", three_bills, "--cache").stdout

    assert (
        "2 requests, 33.3% of 9,000 tokens read from the cache; the cache had no avoidable" in told
    )


def test_the_page_of_a_billed_transcript_tells_why_the_cache_missed(three_bills, sound, tmp_path):
    page = tmp_path / "page.html"
    for path, is_told in ((three_bills, True), (sound, False)):
        assert run("replay", path, "--html", page).exit_code == 0
        assert ('"cache":null' not in page.read_text("utf-8")) is is_told


def test_plan_tells_what_each_stage_would_do(sound, tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text('[[stage]]\nuse = "BatchOffload"\nkeep_recent = 1\n', "utf-8")
    told = json.loads(run("inspect", sound, "--plan", config, "--json").stdout)["files"][str(sound)]
    found = [(stage["stage"], stage["outcome"]) for stage in told["stages"]]
    assert found == [("BatchOffload", "would act")]
    assert told["saved"] > 0
    assert "skipped" in run("inspect", sound, "--plan", "coding").stdout


def test_what_a_stage_would_do_is_told_in_words(sound, tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text(
        '[[stage]]\nuse = "BatchOffload"\nmin_chars = 100\nkeep_recent = 0\n', "utf-8"
    )

    printed = run("inspect", sound, "--plan", config).stdout

    assert re.search(
        r"BatchOffload +would act +4 blocks moved to files, [\d,]+ characters", printed
    )


# Several files, and folders -----------------------------------------------------------------------


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    folder = tmp_path / "recordings"
    (folder / "deep").mkdir(parents=True)
    (folder / "one.jsonl").write_text(lines(HISTORY), "utf-8")
    (folder / "deep" / "two.jsonl").write_text(lines(HISTORY), "utf-8")
    (folder / "deep" / "package.json").write_text("{}", "utf-8")
    return folder


@pytest.mark.parametrize(
    "command",
    [
        ("replay", "--processes", "1"),
        ("inspect",),
        ("inspect", "--plan", "coding"),
    ],
)
def test_every_command_reads_the_recordings_in_a_folder_and_says_what_it_skipped(
    recordings, command: tuple[str, ...]
):
    done = run(*command, recordings, "--json")

    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert list(told["skipped"]) == [str(recordings / "deep" / "package.json")]
    assert "skipped: 1 file without a conversation" in done.stderr
    if "files" in told:
        assert list(told["files"]) == [
            str(recordings / "one.jsonl"),
            str(recordings / "deep" / "two.jsonl"),
        ]


def test_inspect_shows_several_files_and_all_together(recordings):
    told = json.loads(run("inspect", recordings, "--json").stdout)
    one, two = told["files"].values()
    assert told["all"]["tokens"] == one["tokens"] + two["tokens"]

    printed = run("inspect", recordings).stdout
    for title in ("one.jsonl: ", "two.jsonl: ", "all 2 conversations: "):
        assert title in printed
    total = printed.partition("all 2 conversations: ")[2]
    assert re.search(r"^(one|two)\.jsonl +2 +result of bash", total, re.MULTILINE)


def test_inspect_goes_on_after_a_file_that_fails(sound, tmp_path):
    done = run("inspect", tmp_path / "none.jsonl", sound, "--json")
    assert done.exit_code == 1
    told = json.loads(done.stdout)
    assert list(told["files"]) == [str(sound)]
    assert "No such file" in told["errors"][str(tmp_path / "none.jsonl")]
    assert "none.jsonl: No such file" in " ".join(done.stderr.split())


def test_the_cache_misses_of_several_files_are_added(three_bills, tmp_path):
    again = tmp_path / "again.jsonl"
    again.write_bytes(three_bills.read_bytes())
    told = json.loads(run("inspect", three_bills, again, "--cache", "--json").stdout)
    [tally] = told["all"]["tallies"]
    assert (told["all"]["requests"], tally["misses"], tally["tokens"]) == (6, 2, 12_000)
    assert "all 2 conversations: 6 requests" in run("inspect", three_bills, again, "--cache").stdout


def test_plan_adds_what_would_leave_several_files(recordings, tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text('[[stage]]\nuse = "BatchOffload"\nkeep_recent = 1\n', "utf-8")
    told = json.loads(run("inspect", recordings, "--plan", config, "--json").stdout)
    assert told["all"]["saved"] == sum(one["saved"] for one in told["files"].values()) > 0


def test_a_plan_of_nothing_known_and_two_questions_at_once_are_refused(sound):
    unknown = run("inspect", sound, "--plan", "nonsense")
    assert (unknown.exit_code, "there is no policy 'nonsense'" in unknown.stderr) == (2, True)
    both = run("inspect", sound, "--plan", "coding", "--cache")
    assert (both.exit_code, "--cache or --plan, not both" in both.stderr) == (2, True)


def test_the_version_is_printed():
    done = run("--version")
    assert (done.exit_code, done.stdout) == (0, f"ctxpipe {ctxpipe.__version__}\n")


# In a process of its own --------------------------------------------------------------------------


def test_in_a_pipe_there_are_no_colours_no_bar_and_no_cut(sound):
    done = process("replay", sound, env={**os.environ, "COLUMNS": "30"})
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert "…" not in done.stdout
    assert "replaying" not in done.stderr
    assert done.stdout.splitlines()[1].split()[0] == "policy"


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize("unwanted", [{}, {"NO_COLOR": "1"}])
def test_in_a_terminal_colours_are_shown_unless_they_are_unwanted(sound, unwanted: dict[str, str]):
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80"}
    environment.pop("NO_COLOR", None)
    printed = in_terminal(["replay", str(sound)], environment | unwanted)
    assert "coding" in printed
    assert bool(re.search(r"\x1b\[[\d;]*[39]\dm", printed)) is not bool(unwanted)


def in_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    import pty

    parent, child = pty.openpty()
    command = [*prepared_python(), "-m", "ctxpipe", *arguments]
    with subprocess.Popen(command, stdin=child, stdout=child, stderr=child, env=environment):
        os.close(child)
        printed = b""
        try:
            while part := os.read(parent, 65536):
                printed += part
        except OSError:  # Linux says so when the other end is closed
            pass
    os.close(parent)
    return printed.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="interruptions are sent in another way")
def test_an_interruption_ends_it_with_130_and_no_traceback(tmp_path):
    fifo = tmp_path / "never.jsonl"
    os.mkfifo(fifo)  # reading it waits for a writer that never comes
    command = [*prepared_python(), "-m", "ctxpipe", "replay", str(fifo)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        writer = os.open(fifo, os.O_WRONLY)  # returns once it is read
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        try:
            _, told = running.communicate(timeout=60)
        finally:
            running.kill()
            os.close(writer)
    assert running.returncode == 130
    assert told == "ctxpipe: interrupted\n"


def test_a_reader_that_leaves_early_is_no_error(tmp_path):
    path = tmp_path / "long.jsonl"  # more than a pipe holds is printed of it
    path.write_text(lines([user("word " * 50), assistant("Well.")] * 1000), "utf-8")
    command = (
        f"{shlex.join(prepared_python())} -m ctxpipe inspect {path} --json --most 2000 | head -1"
    )
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == ("{\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_output_that_cannot_be_written_is_told_in_one_sentence(sound, form: tuple[str, ...]):
    with Path("/dev/full").open("w") as full:
        command = [*prepared_python(), "-m", "ctxpipe", "inspect", str(sound), *form]
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False
        )
    assert (done.returncode, done.stderr) == (
        1,
        "ctxpipe: standard output: No space left on device\n",
    )


def test_characters_that_the_output_does_not_know_are_escaped(tmp_path):
    path = tmp_path / "signs.jsonl"
    path.write_text(lines(conversation(user("\u65c5 \U0001f600"), assistant("\xe9"))), "utf-8")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    printed, told = (
        subprocess.run(
            [sys.executable, "-m", "ctxpipe", "inspect", str(path), *form],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=ascii_only,
        )
        for form in ((), ("--json",))
    )

    assert (printed.returncode, printed.stderr, told.returncode, told.stderr) == (0, "", 0, "")
    assert "\\u65c5 \\U0001f600" in printed.stdout
    assert {block["begins"] for block in json.loads(told.stdout)["all"]["largest"]} == {
        "\u65c5 \U0001f600",
        "\xe9",
    }


COMMANDS = [
    "clean",
    "claude-code",
    "demo",
    "gateway",
    "inspect",
    "mcp",
    "replay",
    "survive",
    "trial",
    "wrap",
]


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_names_every_command_and_the_exit_codes(arguments: tuple[str, ...]):
    done = process(*arguments)
    text = done.stdout + done.stderr

    assert done.returncode == (0 if arguments else 2)
    listed = re.findall(r"^[^\w-]+([a-z][a-z-]+)  +[A-Z]", text, re.MULTILINE)
    assert sorted(listed) == sorted(COMMANDS)
    assert "Exit codes" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_says_what_it_does(command: str):
    done = process(command, "--help")

    assert (done.returncode, done.stderr) == (0, "")
    assert "sage: ctxpipe" in done.stdout
    needs = dict.fromkeys(["gateway", "trial", "wrap"], "the extra gateway")
    needs["mcp"] = "the extra mcp"
    assert needs.get(command, "") in " ".join(done.stdout.split())


def test_an_unknown_command_is_a_misuse_that_names_it():
    done = process("reply")

    assert done.returncode == 2
    assert "No such command 'reply'" in done.stderr


def test_the_table_of_a_replay_has_six_columns_and_all_when_asked(sound):
    narrow, wide = (run("replay", sound, *more).stdout for more in ((), ("--all-columns",)))

    assert re.search(r"^policy +cost +ratio +peak +seen +found$", narrow, re.MULTILINE)
    assert "marked" not in narrow
    assert re.search(r"^marked +1.000", wide, re.MULTILINE)
    assert "marked   the ratio with cache marks" in wide


@pytest.mark.parametrize(("more", "prices"), [((), "input tokens"), (("--model", MODEL), MODEL)])
def test_every_report_says_what_made_it_when_and_whose_prices_it_has(
    sound, tmp_path, more: tuple[str, ...], prices: str
):
    page = tmp_path / "page.html"
    printed = process("replay", sound, *more, "--html", page).stdout
    told = json.loads(process("replay", sound, *more, "--json").stdout)["made"]

    for report in (printed, told, page.read_text("utf-8")):
        assert re.search(
            rf"ctxpipe {re.escape(ctxpipe.__version__)}, \d{{4}}-\d\d-\d\d, .*{prices}: "
            "ctxpipe replay .*sound.jsonl",
            report,
        )


@pytest.mark.parametrize(
    ("more", "whose"),
    [
        ((), "tokens of tiktoken"),
        (("--plan", "coding"), "tokens of tiktoken"),
        (("--cache",), "prices of the model of each reply"),
        (("--cache", "--model", MODEL), f"prices of {MODEL}"),
    ],
)
def test_what_fills_a_context_says_what_made_it_too(three_bills, more: Any, whose: str):
    last_line = process("inspect", three_bills, *more).stdout.splitlines()[-1]
    made = json.loads(process("inspect", three_bills, *more, "--json").stdout)["made"]

    for report in (last_line, made):
        assert report.startswith(f"ctxpipe {ctxpipe.__version__}, ")
        assert f"{whose}: ctxpipe inspect " in report


@pytest.mark.parametrize("command", ["replay", "inspect"])
def test_where_no_file_can_be_read_the_error_is_all_that_is_printed(tmp_path, command: str):
    ran = run(command, tmp_path / "missing.jsonl")

    assert ran.exit_code == 1
    assert "ctxpipe 0." not in ran.output


def test_a_report_names_two_of_many_files(sound, tmp_path):
    files = [tmp_path / f"{number}.jsonl" for number in range(5)]
    for file in files:
        file.write_bytes(sound.read_bytes())

    made = json.loads(process("replay", *files, "--json").stdout)["made"]

    assert made.endswith(f"ctxpipe replay {files[0]} {files[1]} --json, and 3 more")


# Real conversations -------------------------------------------------------------------------------


# Assumptions of a replay --------------------------------------------------------------------------


def with_usage(tmp_path: Path, *, prefix: int, share: float) -> Path:
    """A recording whose usage reports a prefix, and this share of the earlier prompt as read."""
    path = tmp_path / "billed.jsonl"
    rows: list[Any] = []
    earlier = 0
    counter = TokenCounter()
    for message in HISTORY:
        row = dict(message)
        if message["role"] == "assistant":
            total = prefix + round(1.25 * counter.total(rows))
            read = round(share * earlier)
            row["usage"] = {"input_tokens": total - read, "cache_read_input_tokens": read}
            earlier = total
        rows.append(row)
    path.write_text(lines(rows), "utf-8")
    return path


def test_the_prefix_is_an_option_with_a_default_that_is_reported(sound):
    told = json.loads(run("replay", sound, "--json").stdout)
    other = json.loads(run("replay", sound, "--prefix", 0, "--json").stdout)
    printed = run("replay", sound).stdout

    [read], [other_read] = told["read"].values(), other["read"].values()
    assert read["prefix"] == {"tokens": pytest.approx(29_000, rel=0.001), "from": "assumption"}
    assert other_read["prefix"]["tokens"] == 0
    assert told["all"][0]["cost"] > 29_000 > other["all"][0]["cost"]
    assert "in tokens: assumed (--prefix) in 1 file, median 29,000" in printed


def test_the_prefix_that_a_usage_shows_is_used_whatever_the_option_says(tmp_path):
    file = with_usage(tmp_path, prefix=12_000, share=1)
    told = json.loads(run("replay", file, "--prefix", 5, "--json").stdout)

    [read] = told["read"].values()
    assert read["prefix"] == {"tokens": pytest.approx(12_000, rel=0.01), "from": "usage"}
    assert read["calibration"]["billed_tokens"] == pytest.approx(
        read["calibration"]["simulated_tokens"], rel=0.001
    )


def test_a_pause_is_an_option_and_the_cache_never_expires_by_default(sound):
    awake, resting = (
        json.loads(run("replay", sound, "--json", *more).stdout) for more in ((), ("--rest", 2))
    )
    assert awake["cache"] == {"rules": "anthropic", "assumed": [], "rest_every": 0}
    assert awake["all"][0]["hits"] > resting["all"][0]["hits"]
    assert "marks for an hour" not in run("replay", sound).stdout
    assert "marks for an hour" in run("replay", sound, "--rest", 2).stdout


@pytest.mark.parametrize(
    ("more", "rules"),
    [
        ((), "anthropic"),
        (("--provider", "deepseek"), "deepseek"),
        (("--model", "gpt-5.6"), "openai"),
        (("--model", "gpt-4o"), "openai-before-5-6"),
        (("--model", "gpt-4o", "--provider", "xai"), "xai"),
    ],
)
def test_the_rules_of_the_cache_are_those_of_the_provider_or_the_model(
    sound, more: tuple[str, ...], rules: str
):
    assert json.loads(run("replay", sound, "--json", *more).stdout)["cache"]["rules"] == rules


def test_what_is_assumed_about_a_cache_is_printed(sound):
    printed = run("replay", sound, "--provider", "gemini").stdout
    assert "cache: gemini, assumed are lifetime_seconds, hit_rate" in printed
    sure = run("replay", sound, "--provider", "gemini", "--hit-rate", 0.5).stdout
    assert "cache: gemini, assumed are lifetime_seconds;" in sure


def test_fewer_hits_cost_more(sound):
    costs = [
        json.loads(
            run("replay", sound, "--provider", "gemini", "--hit-rate", rate, "--json").stdout
        )["all"][0]["cost"]
        for rate in (1, 0.5, 0)
    ]
    assert costs == sorted(costs)
    assert costs[0] < costs[2]


def test_an_unknown_provider_is_refused_with_those_that_exist(sound):
    done = process("replay", sound, "--provider", "acme")
    assert done.returncode == 2
    assert "no cache is called 'acme'; give anthropic, openai" in done.stderr


@pytest.mark.parametrize(("share", "alike"), [(1, "100.0%"), (0.5, "20.0%")])
def test_a_recording_with_usage_is_scored(tmp_path, share: float, alike: str):
    file = with_usage(tmp_path, prefix=29_000, share=share)
    printed = run("replay", file, "--check-usage").stdout

    [row] = [line.split() for line in printed.splitlines() if line.startswith("billed.jsonl")]
    assert row[1] == "5"
    assert row[2] == "1.000"
    assert row[-1] == alike


def test_without_any_usage_there_is_nothing_to_score(sound):
    done = process("replay", sound, "--check-usage")
    assert done.returncode == 1
    assert "no recording reports the usage of a prompt cache" in done.stderr


# The advice at the end of a replay ----------------------------------------------------------------


@pytest.fixture
def long_work(tmp_path: Path) -> Path:
    """A recording in which old results cost more than all else."""
    reads = [
        step(
            f"t{n}", "bash", {"command": f"cat part_{n}"}, f"word_{n} in a row of part_{n}\n" * 400
        )
        for n in range(30)
    ]
    path = tmp_path / "long.jsonl"
    path.write_text(lines(conversation(user("Read all parts."), *reads, assistant("Done."))))
    return path


def test_a_replay_ends_with_a_sentence_of_advice_and_the_next_command(long_work):
    printed = run("replay", long_work).stdout.splitlines()
    told = json.loads(run("replay", long_work, "--json").stdout)["advice"]

    assert (told["verb"], told["policy"]) == ("Use", "coding")
    assert (
        printed[-1] == f"next: ctxpipe replay {long_work} --compare none,coding --html report.html"
    )
    assert printed[-1] == f"next: {told['next']}"
    assert told["sentence"] in printed
    assert re.match(r"Use coding: it costs \d+\.\d% of none, leaves \d+", told["sentence"])


def test_the_code_that_a_replay_prints_is_a_program(long_work):
    printed = run("replay", long_work).stdout
    told = json.loads(run("replay", long_work, "--json").stdout)["advice"]

    assert told["code"] in printed
    assert "budget=Budget(window=200_000, trigger=167_000)" in told["code"]
    compile(told["code"], "pasted.py", "exec")


def test_the_notes_of_an_agent_about_its_subagents_are_no_recordings(tmp_path, sound):
    (tmp_path / "agent-1.meta.json").write_text('{"agentType": "general-purpose"}')

    done = run("replay", tmp_path)

    assert done.exit_code == 0
    assert "1 file neither JSON nor JSONL" not in done.stderr
    assert "without a conversation" not in done.stderr


def test_without_a_comparison_there_is_no_advice(sound):
    assert "next:" not in run("replay", sound, "--compare", "none").stdout
    assert json.loads(run("replay", sound, "--compare", "none", "--json").stdout)["advice"] is None


@pytest.mark.parametrize("command", ["replay", "inspect"])
def test_a_file_of_which_much_is_unknown_is_read_with_a_warning(tmp_path, command: str):
    path = tmp_path / "session.jsonl"
    known = [
        {"type": "user", "message": {"role": "user", "content": "Go."}},
        {"type": "assistant", "message": {"role": "assistant", "content": "Done."}},
    ]
    path.write_text("\n".join(map(json.dumps, [*known, {"type": "mystery"}])))

    done = run(command, path)

    assert done.exit_code == 0
    shares = json.loads(run(command, path, "--json").stdout)
    share = shares["read"][str(path)]["recognized"] if command == "replay" else None
    assert (share or shares["recognized"][str(path)]) == pytest.approx(2 / 3)
    assert "warning:" in done.stderr
    assert "only 66.7% of the records are known in the format 'Claude Code session'" in done.stderr
    assert "mystery (1)" in done.stderr
