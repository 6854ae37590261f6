"""The recipes in examples/deploy agree with the gateway, with each other and with the page.

No container engine and no service manager runs them here.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from places import ROOT

from ctxpipe._cli import app
from ctxpipe.gateway.options import ENVIRONMENT_PREFIX
from ctxpipe.gateway.settings import DRAIN_SECONDS

DEPLOY = ROOT / "examples" / "deploy"
CONTAINERFILE = DEPLOY / "Containerfile"
COMPOSE = DEPLOY / "compose.yaml"
UNIT = DEPLOY / "ctxpipe-gateway.service"
PAGE = (ROOT / "docs" / "gateway-team.md").read_text("utf-8")
PROGRAM = "/opt/ctxpipe/bin/ctxpipe"


def gateway_options() -> dict[str, typer.core.TyperOption]:
    """Return the options of ``ctxpipe gateway`` by their flags."""
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    parameters = group.commands["gateway"].params
    return {
        flag: parameter
        for parameter in parameters
        if isinstance(parameter, typer.core.TyperOption)
        for flag in parameter.opts
    }


def gateway_variables() -> set[str]:
    """Return the environment variables that ``ctxpipe gateway`` reads its options from."""
    return {f"{ENVIRONMENT_PREFIX}_{option.name}".upper() for option in gateway_options().values()}


def flags_of(command: list[str]) -> set[str]:
    return {word.partition("=")[0] for word in command if word.startswith("--")}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Containerfile: a name and its arguments on one line."""
    lines = CONTAINERFILE.read_text("utf-8").splitlines()
    code = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    found = []
    for line in code.splitlines():
        if line.strip():
            name, _, arguments = line.strip().partition(" ")
            found.append((name, arguments))
    return found


def arguments_of(name: str) -> list[str]:
    return [arguments for found, arguments in instructions() if found == name]


def image_variables() -> dict[str, str]:
    [variables] = arguments_of("ENV")
    return dict(word.split("=", 1) for word in shlex.split(variables))


def compose() -> dict[str, Any]:
    contents = yaml.safe_load(COMPOSE.read_text("utf-8"))
    assert isinstance(contents, dict)
    return contents


def unit_values(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text("utf-8"), re.MULTILINE)


# The image ----------------------------------------------------------------------------------------


def test_every_instruction_of_the_image_is_one_and_its_sources_exist():
    names = {name for name, _ in instructions()}
    assert names == {
        *("ARG", "CMD", "COPY", "ENV", "EXPOSE", "FROM", "RUN", "USER", "VOLUME", "WORKDIR"),
    }
    for arguments in arguments_of("COPY"):
        if not arguments.startswith("--from=build "):
            *sources, _ = arguments.split()
            assert [source for source in sources if not (ROOT / source).exists()] == []


def test_the_gateway_in_the_image_runs_without_root_and_writes_to_its_volume_only():
    users = arguments_of("USER")
    variables = image_variables()

    assert users == ["10001:10001"]
    assert "--uid 10001 " in arguments_of("RUN")[-1]
    assert arguments_of("VOLUME") == [variables["CTXPIPE_GATEWAY_ROOT"]]


def test_the_image_starts_the_gateway_with_variables_that_it_reads():
    variables = image_variables()
    [command] = [json.loads(arguments) for arguments in arguments_of("CMD")]

    assert command[:2] == ["ctxpipe", "gateway"]
    assert flags_of(command) <= gateway_options().keys()
    own = {name for name in variables if name.startswith("CTXPIPE_")}
    assert own <= gateway_variables()
    assert variables["CTXPIPE_GATEWAY_LISTEN"].endswith(f":{arguments_of('EXPOSE')[0]}")


def test_the_image_has_a_python_and_extras_that_the_project_names():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [base] = arguments_of("ARG")
    version = re.fullmatch(r"PYTHON=python:(3\.\d+)-slim", base)
    [extras] = re.findall(r"'\.\[(.+?)\]'", arguments_of("RUN")[0])

    assert version
    assert f"Programming Language :: Python :: {version[1]}" in project["classifiers"]
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()


# The compose file ---------------------------------------------------------------------------------


def test_whatever_a_service_refers_to_is_declared_and_nothing_else():
    contents = compose()
    services = contents["services"]
    volumes, networks, needed = set(), set(), set()
    for service in services.values():
        sources = {volume.partition(":")[0] for volume in service["volumes"]}
        volumes |= {source for source in sources if not source.startswith(".")}
        networks |= set(service["networks"])
        needed |= service.get("depends_on", {}).keys()

    assert contents.keys() == {"name", "services", "volumes", "networks"}
    assert volumes == contents["volumes"].keys()
    assert networks == contents["networks"].keys()
    assert needed <= services.keys()
    build = services["gateway"]["build"]
    context = (DEPLOY / build["context"]).resolve()
    assert (context, context / build["dockerfile"]) == (ROOT.resolve(), CONTAINERFILE.resolve())


def test_the_gateway_of_the_compose_file_has_options_and_files_that_exist():
    gateway = compose()["services"]["gateway"]
    variables = gateway["environment"]
    mounts = dict(volume.split(":", 2)[:2] for volume in gateway["volumes"])

    own = {name for name in variables if name.startswith("CTXPIPE_")}
    assert own <= gateway_variables()
    assert mounts["texts"] == image_variables()["CTXPIPE_GATEWAY_ROOT"]
    token_file = Path(variables["CTXPIPE_GATEWAY_TOKEN_FILE"])
    assert mounts["./config"] == str(token_file.parent)
    assert gateway["read_only"] is True
    assert "user" not in gateway


def test_the_gateway_reaches_the_database_of_the_compose_file_with_its_password():
    services = compose()["services"]
    gateway, database = services["gateway"], services["database"]
    created = database["environment"]
    journal = gateway["environment"]["CTXPIPE_GATEWAY_JOURNAL"]

    assert journal == f"postgres://{created['POSTGRES_USER']}@database/{created['POSTGRES_DB']}"
    assert gateway["environment"]["PGPASSWORD"] == created["POSTGRES_PASSWORD"]
    assert set(gateway["networks"]) & set(database["networks"])
    [name] = set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text("utf-8")))
    assert f"{name}=" in PAGE


def test_every_stop_leaves_more_time_than_open_replies_get():
    grace = compose()["services"]["gateway"]["stop_grace_period"]
    [timeout] = unit_values("TimeoutStopSec")

    assert int(grace.removesuffix("s")) > DRAIN_SECONDS
    assert int(timeout) > DRAIN_SECONDS


# The unit -----------------------------------------------------------------------------------------


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed"
)
def test_systemd_accepts_the_unit(tmp_path):
    program = shutil.which("true")
    unit = tmp_path / UNIT.name
    # The program is not installed here, and its absence would be reported.
    unit.write_text(UNIT.read_text("utf-8").replace(PROGRAM, str(program)), "utf-8")

    command = ["systemd-analyze", "verify", "--man=no", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_unit_starts_the_gateway_with_flags_that_it_has_and_without_root():
    [start] = unit_values("ExecStart")
    command = shlex.split(start)

    assert command[:2] == [PROGRAM, "gateway"]
    assert flags_of(command) <= gateway_options().keys()
    assert unit_values("User") == ["ctxpipe"]
    assert unit_values("ExecReload") == ["/bin/kill -HUP $MAINPID"]


def test_the_unit_can_write_to_the_root_of_the_pages_configuration():
    [block] = re.findall(r"```toml\n(\[gateway\]\n.*?)```", PAGE, re.DOTALL)
    [folder] = unit_values("StateDirectory")

    assert tomllib.loads(block)["gateway"]["root"] == f"/var/lib/{folder}"


def test_the_page_names_every_recipe():
    assert [
        path.name for path in DEPLOY.iterdir() if f"examples/deploy/{path.name}" not in PAGE
    ] == []
