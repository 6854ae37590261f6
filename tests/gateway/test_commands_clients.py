"""What each agent is told of the gateway. Those that are installed are run by tests/clients."""

import json
import re
from pathlib import Path

import pytest

from ctxpipe.gateway.commands import ANTHROPIC_URL, CHATGPT_URL, OPENAI_URL, Client, find_client

URL = "http://127.0.0.1:1"
OWN = """
model_provider = "corp"
[model_providers.corp]
base_url = "https://corp.example/v1"
"""


def test_the_page_names_the_versions_that_tests_clients_runs():
    root = Path(__file__).parents[2]
    package = json.loads((root / "tests/clients/package.json").read_text())
    pinned = (root / "tests/clients/requirements.txt").read_text().split()
    page = (root / "docs/gateway.md").read_text()
    named = dict(re.findall(r"\| ([\w -]+) \| (\d+\.\d+\.\d+) \|", page))
    assert f"mini-swe-agent=={named['mini-swe-agent']}" in pinned
    assert set(package["dependencies"].values()) <= set(named.values())


def test_every_agent_has_the_variables_of_all_and_its_own():
    assert Client().environment(URL) == {
        "ANTHROPIC_BASE_URL": f"{URL}/anthropic",
        "OPENAI_BASE_URL": f"{URL}/openai",
        "GOOGLE_GEMINI_BASE_URL": f"{URL}/gemini",
    }


COPILOT = "COPILOT_PROVIDER_BASE_URL"


@pytest.mark.parametrize(
    ("settings", "upstream"),
    [
        ({COPILOT: "https://llm.corp.example/v1"}, "https://llm.corp.example/v1"),
        (
            {COPILOT: "https://api.corp.example", "COPILOT_PROVIDER_TYPE": "anthropic"},
            "https://api.corp.example",
        ),
        ({"COPILOT_PROVIDER_TYPE": "anthropic"}, ANTHROPIC_URL),
        ({"COPILOT_PROVIDER_TYPE": "openai"}, OPENAI_URL),
    ],
)
@pytest.mark.parametrize("name", ["copilot", "a-script-that-starts-it"])
def test_copilot_finds_its_provider_at_a_path_of_its_own(name, settings, upstream):
    client = find_client(name, settings)

    assert client.environment(URL)[COPILOT] == f"{URL}/copilot"
    assert client.upstreams(settings)["/copilot"] == upstream
    assert client.upstreams(settings)["/openai"] == OPENAI_URL
    assert client.advice == ""


@pytest.mark.parametrize(
    "settings", [{}, {"COPILOT_PROVIDER_TYPE": "azure"}, {"COPILOT_PROVIDER_API_KEY": "k"}]
)
def test_copilot_without_a_provider_is_told_that_it_goes_past(settings):
    client = find_client("copilot", settings)

    assert COPILOT not in client.environment(URL)
    assert "/copilot" not in client.upstreams(settings)
    assert COPILOT in client.past_gateway("copilot")
    assert client.advice


@pytest.mark.parametrize(
    ("config", "login", "setting", "said"),
    [
        (None, None, "openai_base_url", ""),
        ("not = [toml", None, "openai_base_url", ""),
        ('model = "m"', {"OPENAI_API_KEY": "k", "tokens": None}, "openai_base_url", ""),
        (None, {"tokens": {"id_token": "t"}}, "openai_base_url", CHATGPT_URL),
        ('openai_base_url = "http://a/v1"', None, "openai_base_url", "http://a/v1"),
        (OWN, None, "model_providers.corp.base_url", "https://corp.example/v1"),
    ],
)
def test_codex_is_told_by_the_setting_that_it_uses(tmp_path, config, login, setting, said):
    if config is not None:
        (tmp_path / "config.toml").write_text(config)
    if login is not None:
        (tmp_path / "auth.json").write_text(json.dumps(login))
    before = sorted(path.read_bytes() for path in tmp_path.iterdir())

    client = find_client("codex", {"CODEX_HOME": str(tmp_path)})

    assert client.upstream == said
    assert client.command(["codex"], URL, None)[1] == f'--config={setting}="{URL}/openai"'
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("config", "is_off"),
    [
        (None, True),
        (OWN, True),
        ('[plugins."mine@here"]\nenabled = true', False),
        ("[features]\nplugins = true", False),
    ],
)
def test_codex_downloads_no_plugins_unless_its_user_has_some(tmp_path, config, is_off):
    if config is not None:
        (tmp_path / "config.toml").write_text(config)

    options = find_client("codex", {"CODEX_HOME": str(tmp_path)}).command(["codex"], URL, None)

    assert ("--config=features.plugins=false" in options) == is_off
