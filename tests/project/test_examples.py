"""The example: its tools, its loop, the scripted model, and the demo as a user starts it."""

from __future__ import annotations

import copy
import os
import pty
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import anyio
import anyio.to_thread
import pytest
from places import PACKAGE, ROOT
from processes import prepared_python
from readme import FIRST_PROGRAM
from recorded import NIGHTLY
from sdks import needs_middleware

from ctxpipe import ContextPipeline, LocalStorage, Tool, offload_tools
from ctxpipe.lab.transcripts import read_transcript
from ctxpipe.testing import Failure, MessagesServer, Reply, Script, answer_with, tool_use
from ctxpipe.tools import ToolInputError
from examples import tools as example_tools
from examples.adapters.scripted import tool_message
from examples.agent_loop import Turn, build_pipeline, run_agent
from examples.scripted_model import FAULTS, survey
from examples.tools import folder_tools

SURVEYED = PACKAGE if NIGHTLY else ROOT / "tests" / "support"


def command(*arguments: object, example: str = "agent_loop") -> list[str]:
    return [*prepared_python(), "-m", f"examples.{example}", *map(str, arguments)]


def test_every_program_is_named_on_the_page_of_the_start_and_shipped_with_the_source():
    page = (ROOT / "docs" / "index.md").read_text("utf-8")
    programs = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "examples").rglob("*.py")
        if '"__main__"' in path.read_text("utf-8")
    ]
    shipped = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))

    assert [program for program in programs if program not in page] == []
    assert len(programs) >= 10
    assert "/examples" in shipped["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small package, with things around it that the tools must not reach."""
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text('"""A package."""\n')
    numbers = "".join(f"x{n} = {n}\n" for n in range(400))
    (package / "long.py").write_text(f'# A comment\n"""Much of the same."""\n{numbers}')
    (package / "inner" / "short.py").write_bytes(b"def f():\r\n    return 'caf\xc3\xa9'\r\n")
    (package / ".hidden.py").write_text("secret = 1\n")
    (tmp_path / "outside.txt").write_text("secret")
    (package / "link.txt").symlink_to(tmp_path / "outside.txt")
    return package


async def use(folder: Path, name: str, **arguments: object) -> str:
    tool = next(tool for tool in folder_tools(folder) if tool.name == name)
    return str(await tool(arguments))


# Tools --------------------------------------------------------------------------------------------


async def test_list_dir_names_every_file_with_its_size_and_nothing_hidden(folder):
    assert (await use(folder, "list_dir")).splitlines() == [
        "__init__.py 17",
        f"long.py {(folder / 'long.py').stat().st_size}",
        "inner/short.py 30",
    ]
    assert await use(folder, "list_dir", path="inner") == "inner/short.py 30"


async def test_read_file_gives_the_file_as_it_is(folder):
    assert (
        await use(folder, "read_file", path="inner/short.py") == "def f():\r\n    return 'café'\r\n"
    )


async def test_grep_gives_path_line_number_and_line(folder):
    assert await use(folder, "grep", pattern=r"x39\d =", path="long.py") == "\n".join(
        f"long.py:{n + 3}: x{n} = {n}" for n in range(390, 400)
    )
    assert await use(folder, "grep", pattern="nowhere") == "[no match]"
    assert (await use(folder, "grep", pattern="x")).endswith(
        "[only the first 200 matches are shown]"
    )


@pytest.mark.parametrize("name", ["read_file", "list_dir", "grep"])
@pytest.mark.parametrize(
    "path",
    ["..", "../outside.txt", "/etc/passwd", "inner/../../outside.txt", "link.txt", "a\0b", 7],
)
async def test_no_path_leads_out_of_the_folder(folder, name, path: object):
    with pytest.raises(ToolInputError):
        await use(folder, name, path=path, pattern="secret")


@pytest.mark.parametrize("path", ["nothing.py", "inner"])
async def test_what_cannot_be_read_is_an_error_for_the_model(folder, path):
    with pytest.raises(ToolInputError, match=path):
        await use(folder, "read_file", path=path)


async def test_a_pattern_that_takes_for_ever_is_an_error_for_the_model(folder, monkeypatch):
    monkeypatch.setattr(example_tools, "SECONDS", 0.01)
    (folder / "as.txt").write_text(f"{'a' * 60}b", "utf-8")

    with pytest.raises(ToolInputError, match=r"timed out$"):
        await use(folder, "grep", pattern="(?:a|aa|aaa)+c|(a+)+$")


async def test_run_python_gives_what_is_printed_and_how_it_ended(folder):
    assert (
        await use(folder, "run_python", code="print(open('__init__.py').read())")
        == '"""A package."""\n\n'
    )
    assert await use(folder, "run_python", code="") == "[no output]"
    failed = await use(folder, "run_python", code="print('so far'); import json; json.loads('{')")
    assert failed.startswith("so far\n")
    assert failed.endswith("[exit code 1]")


@pytest.mark.parametrize(
    "code",
    [
        "open('new.txt', 'w')",
        "open('__init__.py', 'r+')",
        "import os; os.remove('long.py')",
        "import pathlib; pathlib.Path('d').mkdir()",
        "import shutil; shutil.rmtree('inner')",
        "open('../outside.txt')",
        "open('link.txt')",
        "import os; os.listdir('..')",
        "import subprocess; subprocess.run(['ls'])",
        "import os; os.system('ls')",
        "import socket; socket.create_connection(('127.0.0.1', 1))",
        "import ctypes; ctypes.CDLL(None)",
    ],
)
async def test_a_program_may_read_in_the_folder_and_nothing_else(folder, code):
    before = sorted(folder.rglob("*"))

    assert "PermissionError" in await use(folder, "run_python", code=code)
    assert sorted(folder.rglob("*")) == before


async def test_a_program_has_no_environment(folder, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")

    assert "secret" not in await use(
        folder, "run_python", code="import os; print(dict(os.environ))"
    )


async def test_a_program_that_never_ends_is_stopped(folder, monkeypatch):
    monkeypatch.setattr(example_tools, "SECONDS", 0.3)

    with pytest.raises(ToolInputError, match=r"longer than 0\.3 s"):
        await use(folder, "run_python", code="while True: pass")


# The loop -----------------------------------------------------------------------------------------


async def turns_of(
    script: Script, folder: Path, pipeline: ContextPipeline | None = None
) -> list[Turn]:
    storage = LocalStorage(folder.parent / "storage")
    tools: list[Tool] = [*folder_tools(folder), *offload_tools(storage, session_id="s")]
    async with (
        MessagesServer(script) as server,
        anthropic.AsyncAnthropic(base_url=server.url, api_key="test", max_retries=0) as client,
    ):
        pipeline = pipeline or build_pipeline(client, storage, folder)
        agent = run_agent(client, pipeline, tools, "Go.", model="m", session_id="s")
        turns = [turn async for turn in agent]
    assert not server.refused
    return turns


async def test_the_example_has_the_stages_of_the_readmes_program(tmp_path):
    async with anthropic.AsyncAnthropic(api_key="test") as client:
        pipeline = build_pipeline(client, LocalStorage(tmp_path / "storage"), tmp_path)

    stages = [type(stage).__name__ for stage in pipeline.stages]
    assert stages == re.findall(r"^    \.use\((\w+)\(", FIRST_PROGRAM, re.MULTILINE)
    assert len(stages) == 4


async def test_the_loop_runs_parallel_calls_and_ends_with_the_answer(folder):
    script: list[Reply] = [
        answer_with(
            "Hm.",
            tool_use("list_dir", {}, id="t1"),
            tool_use("read_file", {"path": "__init__.py"}, id="t2"),
        ),
        "Done.",
    ]
    first, last = await turns_of(script, folder)

    assert [result["tool_use_id"] for result in first.answers] == ["t1", "t2"]
    assert [message["role"] for message in last.context] == ["user", "assistant", "user"]
    assert (last.reply.content[0].text, last.answers) == ("Done.", [])  # type: ignore[union-attr]


async def test_what_a_tool_cannot_do_the_model_is_told(folder):
    script: list[Reply] = [
        answer_with(tool_use("read_file", {"path": "../outside.txt"}), tool_use("fly", {})),
        "Done.",
    ]
    names = ["list_dir", "read_file", "grep", "run_python"]
    names += ["read_offloaded", "search_offloaded", "search_history"]
    first, _ = await turns_of(script, folder)

    assert [(result["content"], result["is_error"]) for result in first.answers] == [
        ("../outside.txt lies outside the folder", True),
        (f"there is no tool 'fly'; there are: {', '.join(names)}", True),
    ]


# The scripted model -------------------------------------------------------------------------------


def last_words(turns: list[Turn]) -> str:
    return "".join(block.text for block in turns[-1].reply.content if block.type == "text")


async def test_the_scripted_model_surveys_a_folder_and_reads_the_longest_module_back(
    folder,
):
    turns = await turns_of(survey, folder)
    calls = [
        block.name for turn in turns for block in turn.reply.content if block.type == "tool_use"
    ]

    assert last_words(turns).splitlines() == [
        "The folder holds 3 modules.",
        "- __init__.py: A package.",
        "- long.py: Much of the same.",
        "- inner/short.py: (no docstring)",
        "The longest, long.py, was read back: it is what is on the disk.",
    ]
    assert {"list_dir", "read_file", "run_python", "grep", "read_offloaded"} <= set(calls)


async def test_the_scripted_model_notices_when_an_offloaded_file_was_changed(folder):
    def meddle() -> None:
        for file in (folder.parent / "storage").rglob("*.md"):
            if "Much of the same" in (text := file.read_text()):
                file.write_text(text.replace("x200 = 200", "x200 = 0"))

    async def meddling(body: Any) -> Any:
        await anyio.to_thread.run_sync(meddle)
        return survey(body)

    assert FAULTS[1] in last_words(await turns_of(meddling, folder))


async def test_the_scripted_model_notices_when_the_context_lost_what_it_had_read(
    folder,
):
    def forgetful(body: Any) -> Any:
        body = copy.deepcopy(body)
        for message in body["messages"]:
            for block in message["content"] if isinstance(message["content"], list) else ():
                if "Much of the same" in str(block.get("content", "")):
                    block["content"] = ""
        return survey(body)

    assert f"- long.py: {FAULTS[0]}" in last_words(await turns_of(forgetful, folder))


# The demo -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """`make demo`, in a pipe; but for the nightly profile it reads one folder."""
    folder, storage = str(SURVEYED), str(tmp_path_factory.mktemp("demo"))
    environment = {"NO_COLOR": "1", "ANTHROPIC_API_KEY": "not used"}
    return start("--demo", "--folder", folder, "--storage", storage, env=environment)


def start(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith("ANTHROPIC")}, **env}
    return subprocess.run(
        command(*arguments),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def row(demo: subprocess.CompletedProcess[str], name: str) -> list[int]:
    """The numbers of a row of the table: with ctxpipe, without."""
    found = re.search(rf"│ {name} +│ +([\d,]+) │ +([\d,]*) │", demo.stdout)
    assert found, demo.stdout + demo.stderr
    return [int(number.replace(",", "")) for number in found.groups() if number]


def test_the_demo_succeeds_and_no_request_is_refused(
    demo,
):
    assert (demo.returncode, demo.stderr) == (0, "")
    assert row(demo, "requests refused") == [0]


def test_the_demo_makes_sixty_calls_or_more_some_in_parallel(
    demo,
):
    assert row(demo, "tool calls and results")[0] >= 60
    assert row(demo, "turns with parallel calls")[0] > 0


def test_the_demo_sends_less_than_half_of_what_it_would_have_sent(
    demo,
):
    for name in ("tokens sent in all", "largest context, tokens"):
        with_ctxpipe, without = row(demo, name)
        assert 0 < with_ctxpipe < without / 2


def test_the_demo_reads_offloaded_files_back(demo):
    assert row(demo, "tool results read back")[0] > 0
    assert "was read back: it is what is on the disk" in demo.stdout


def test_the_demo_names_every_module_that_it_read(demo):
    modules = [path.relative_to(SURVEYED).as_posix() for path in SURVEYED.rglob("*.py")]

    assert {
        line[2:].partition(":")[0] for line in demo.stdout.splitlines() if line.startswith("- ")
    } == set(modules)


def test_the_demos_files_lie_where_it_says(demo):
    said = re.search(r"^The files are in (.+)$", demo.stdout, re.MULTILINE)
    assert said
    files = list(Path(said[1]).rglob("*.md"))

    assert len(files) == row(demo, "files written")[0]
    assert sum(path.stat().st_size for path in files) == row(demo, "bytes in them")[0]


def test_the_demo_records_the_history_that_it_would_have_sent(
    demo,
):
    said = re.search(
        r"^Turn by turn: ctxpipe replay (.+) --html page.html$", demo.stdout, re.MULTILINE
    )
    assert said, demo.stdout

    recorded = read_transcript(said[1])

    assert recorded.calls == row(demo, "turns")[1]
    assert not recorded.repaired


def test_in_a_pipe_the_demo_prints_plain_lines(demo):
    assert "\x1b" not in demo.stdout
    assert re.search(
        r"^turn  10: +\d+ calls, +[\d,]+ tokens instead of +[\d,]+ \(", demo.stdout, re.MULTILINE
    )


def test_on_a_terminal_the_demo_shows_a_line_that_changes(folder, tmp_path):
    arguments = ["--demo", "--folder", str(folder), "--storage", str(tmp_path / "s")]
    shown = "".join(on_a_terminal(arguments))

    assert re.search(r"\x1b\[\d*[A-K]", shown)  # the cursor moves
    assert re.search(r"turn +\d+:", shown)
    assert "fewer tokens sent" in shown


def on_a_terminal(arguments: list[str]) -> Iterator[str]:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with os.fdopen(ours, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            command(*arguments), cwd=ROOT, env=environment, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        with process:
            try:
                while part := screen.read(1024):
                    yield part.decode(errors="replace")
            except OSError:  # how Linux says that the other end is closed
                pass
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("name", "arguments"),
    [("read_logs", '{"day": 1}'), ("read_log", "{"), ("read_log", "[1]"), ("read_log", "{}")],
)
async def test_no_call_of_a_chat_completion_ends_the_loop_of_a_mount(name, arguments):
    call = SimpleNamespace(id="c1", function=SimpleNamespace(name=name, arguments=arguments))

    message = await tool_message(call, [])

    assert (message["role"], message["tool_call_id"]) == ("tool", "c1")
    assert message["content"].startswith(("there is no tool 'read_logs'", "the tool failed"))


async def test_with_a_key_the_example_asks_the_api(folder, tmp_path):
    places = ("--folder", folder, "--storage", tmp_path / "s")
    async with MessagesServer(
        [answer_with(tool_use("list_dir", {})), "It is a package."]
    ) as server:
        done = await anyio.run_process(
            command("What is it?", *places, "--model", "some-model"),
            cwd=ROOT,
            env={**os.environ, "ANTHROPIC_API_KEY": "key", "ANTHROPIC_BASE_URL": server.url},
        )

    assert "some-model works on" in done.stdout.decode()
    assert "It is a package." in done.stdout.decode()
    first = server.requests[0]
    assert first.body["model"] == "some-model"
    older = first.headers.get("x-api-key") == "key"  # where an older SDK sends it
    assert older or first.headers["authorization"] == "Bearer key"
    assert first.body["messages"] == [{"role": "user", "content": "What is it?"}]


async def test_what_the_api_refuses_is_said_and_the_exit_code_tells(folder, tmp_path):
    async with MessagesServer([Failure(403, "permission_error", "your key may not")]) as server:
        done = await anyio.run_process(
            command("--folder", folder, "--storage", tmp_path / "s"),
            cwd=ROOT,
            env={**os.environ, "ANTHROPIC_API_KEY": "key", "ANTHROPIC_BASE_URL": server.url},
            check=False,
        )

    assert done.returncode == 1
    assert "turn 1 failed: " in done.stderr.decode()
    assert "your key may not" in done.stderr.decode()


def test_too_many_turns_end_the_demo_with_an_error(folder, tmp_path):
    done = start(
        "--demo",
        "--folder",
        str(folder),
        "--storage",
        str(tmp_path / "s"),
        "--max-turns",
        "2",
        env={},
    )

    assert done.returncode == 1
    assert done.stderr.strip() == "no answer after 2 turns"


def test_ctrl_c_ends_the_demo_with_one_line(tmp_path):
    process = subprocess.Popen(
        command("--demo", "--storage", tmp_path),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    with process:
        assert process.stdout
        assert process.stderr
        try:
            assert any(line.startswith("turn") for line in process.stdout), process.stderr.read()
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()

    assert process.returncode == 130
    assert stderr == f"\nStopped. What was offloaded so far lies in {tmp_path}\n"


def test_help_says_what_there_is():
    done = start("--help", env={"NO_COLOR": "1"})

    assert done.returncode == 0
    for option in ("--demo", "--folder", "--storage", "--model", "--max-turns", "--keep-going"):
        assert option in done.stdout


@pytest.mark.parametrize("example", ["agent_loop", "tool_runner"])
def test_a_folder_that_is_not_there_is_an_error(example):
    done = subprocess.run(
        command("--folder", "nowhere", example=example),
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )

    assert done.returncode == 2
    assert "there is no folder nowhere" in done.stderr


@pytest.mark.parametrize("example", ["agent_loop", "tool_runner"])
def test_examples_without_the_package_beside_them_say_so(example, tmp_path):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")

    done = subprocess.run(
        command(example=example), capture_output=True, text=True, cwd=tmp_path, check=False
    )

    assert done.returncode == 2
    assert f"there is no folder {tmp_path / 'ctxpipe'}" in " ".join(done.stderr.split())


def test_a_storage_that_cannot_be_written_is_refused_before_the_first_request(folder, tmp_path):
    (tmp_path / "file").touch()
    done = start(
        "--demo", "--folder", str(folder), "--storage", str(tmp_path / "file" / "s"), env={}
    )

    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("file' is a file; give a folder")


@needs_middleware
async def test_the_sdks_tool_runner_works_through_its_task_with_the_middleware():
    runner = command("--folder", PACKAGE / "session", example="tool_runner")
    environment = {name: value for name, value in os.environ.items() if name != "ANTHROPIC_API_KEY"}
    done = await anyio.run_process(runner, check=False, cwd=ROOT, env=environment)

    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().rstrip().endswith(" 0 refused")
