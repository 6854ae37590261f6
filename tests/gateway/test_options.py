"""Each option has a flag, an environment variable and a key in a file."""

import json
import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import SimpleQueue

import pytest
import typer
from gateways import process
from places import ROOT
from processes import prepared_python
from typer.testing import CliRunner

from ctxpipe._cli import app
from ctxpipe.errors import SettingsError
from ctxpipe.gateway import commands
from ctxpipe.gateway.settings import GatewaySettings


@pytest.fixture
def settings_of(monkeypatch):
    """A function that returns the settings with which ``ctxpipe gateway`` would serve."""

    def run(*arguments: str, **environment: str) -> GatewaySettings:
        found: list[GatewaySettings] = []

        def stop(settings: GatewaySettings):
            found.append(settings)
            raise SettingsError("this test starts no gateway")

        monkeypatch.setattr(commands, "open_serving", stop)
        result = CliRunner().invoke(app, ["gateway", *arguments], env=environment)
        assert found, result.output
        return found[0]

    return run


def write(tmp_path: Path, text: str) -> str:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    return str(file)


FILE = (
    '[gateway]\nupstream = "http://file"\nwindow = 30_000\npin = ["RULE: a", "b"]\ndry_run = true\n'
)


def test_options_come_from_the_file(settings_of, tmp_path):
    settings = settings_of("--config", write(tmp_path, FILE))
    assert settings.upstreams == {"": "http://file"}
    assert (settings.window, settings.pin, settings.dry_run) == (30_000, ["RULE: a", "b"], True)


def test_the_environment_takes_precedence_over_the_file_and_a_flag_over_both(settings_of, tmp_path):
    environment = {
        "CTXPIPE_GATEWAY_CONFIG": write(tmp_path, FILE),
        "CTXPIPE_GATEWAY_WINDOW": "40000",
        "CTXPIPE_GATEWAY_UPSTREAM": "http://environment",
    }
    settings = settings_of("--window", "50000", **environment)
    assert settings.upstreams == {"": "http://environment"}
    assert settings.window == 50_000


def test_a_file_with_a_pipeline_is_the_preset(settings_of, tmp_path):
    path = write(tmp_path, FILE + '[[stage]]\nuse = "DirectOffload"\n')
    assert settings_of("--config", path).preset == path
    assert settings_of("--config", path, "--preset", "lean").preset == "lean"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gateway]\nwindows = 3\n", "'windows' is not an option; the options are"),
        ("gateway = 3\n", "give the table"),
        ("[gateway\n", "cannot be read"),
        ("[gateway]\nupstream = 'http://a'\nwindow = 'large'\n", "--window"),
    ],
)
def test_an_invalid_file_is_refused_with_its_reason(tmp_path, text, said):
    run = CliRunner().invoke(app, ["gateway", "--config", write(tmp_path, text)])
    assert run.exit_code == 2
    assert said in " ".join(run.output.replace("│", "").split())


@pytest.mark.parametrize("command", ["gateway", "wrap"])
def test_each_option_has_an_environment_variable(command):
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    run = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "300"})
    options = [
        option for option in group.commands[command].params if option.param_type_name == "option"
    ]
    assert len(options) > 10
    for option in options:
        assert f"CTXPIPE_GATEWAY_{str(option.name).upper()}]" in run.output


RELOADED_AT_ITS_START = """
import os, signal
from ctxpipe._cli import app
from ctxpipe.errors import SettingsError
from ctxpipe.gateway import commands

def stop(settings):
    os.kill(os.getpid(), signal.SIGHUP)
    raise SettingsError("this test starts no gateway")

commands.open_serving = stop
app(["gateway", "--upstream", "http://127.0.0.1:9"])
"""


def test_sighup_during_the_start_does_not_end_the_gateway():
    command = [*prepared_python(), "-c", RELOADED_AT_ITS_START]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "this test starts no gateway" in done.stderr
    assert done.returncode == 2  # not -SIGHUP


async def test_sighup_reads_the_token_file_again(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    tokens.write_text("the first token of all\n")
    options = ("--token-file", str(tokens))
    with process("http://127.0.0.1:9", 0, tmp_path / "root", *options) as gateway:
        assert "listening" in json.loads(gateway.address)
        tokens.write_text("the second token of all name=alice\nanother token of all\n")
        os.kill(gateway.pid, signal.SIGHUP)
        line = gateway.stderr.readline()
        tokens.write_text("short\n")
        os.kill(gateway.pid, signal.SIGHUP)
        failure = gateway.stderr.readline()
        gateway.send_signal(signal.SIGTERM)
        assert gateway.wait(30) == 0
    assert "reloaded: 2 tokens" in line
    assert "nothing was reloaded" in failure


def test_a_signal_that_does_not_interrupt_the_wait_is_seen():
    signals: SimpleQueue[int] = SimpleQueue()

    def signal_this_thread() -> None:
        # Not the main one, whose system call goes on.
        signal.pthread_kill(threading.get_ident(), signal.SIGHUP)

    signalling = threading.Timer(0.2, signal_this_thread)
    time_limit = threading.Timer(10, signals.put, [0])
    with commands.on_signals(signals.put, [signal.SIGHUP]):
        signalling.start()
        time_limit.start()
        received = commands.next_signal(signals)
    time_limit.cancel()
    assert received == signal.SIGHUP


def test_each_signal_that_arrives_during_a_pause_is_answered(tmp_path):
    # A new interpreter, because a prepared one is not the child of this process.
    command = [sys.executable, "-m", "ctxpipe", "gateway", "--upstream", "http://127.0.0.1:9"]
    command += ["--listen", "127.0.0.1:0", "--root", str(tmp_path / "root")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as gateway:
        assert gateway.stdout is not None
        assert gateway.stderr is not None
        try:
            assert "listening" in gateway.stdout.readline()
            # The system chooses the thread that receives such a signal: one pause tells little.
            for _ in range(20):
                gateway.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, gateway.pid, os.WSTOPPED)
                gateway.send_signal(signal.SIGHUP)
                gateway.send_signal(signal.SIGCONT)
                assert select.select([gateway.stderr], [], [], 10)[0]
                assert "reloaded" in gateway.stderr.readline()
        finally:
            gateway.kill()
