"""The agents that ``ctxpipe wrap`` knows: what tells each of them where the gateway is."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ANTHROPIC = "/anthropic"
OPENAI = "/openai"
GEMINI = "/gemini"
"""Under which paths the APIs are served."""
CHATGPT_URL = "https://chatgpt.com/backend-api/codex"

_FOR_ALL = {"ANTHROPIC_BASE_URL": f"{{url}}{ANTHROPIC}", "OPENAI_BASE_URL": f"{{url}}{OPENAI}"}
_GATEWAY = "run ctxpipe gateway --upstream URL, and write its address"


@dataclass(frozen=True, slots=True)
class Client:
    """What is set for an agent beside ANTHROPIC_BASE_URL and OPENAI_BASE_URL.

    *variables* are of its environment, *arguments* come before the user's; {url} in them is the
    gateway's address. *upstream* is where its own settings send requests, "" where they do not say.
    *advice* is for an agent that only its own settings can tell.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    upstream: str = ""
    advice: str = ""

    def environment(self, url: str) -> dict[str, str]:
        """The variables of the agent's environment, for a gateway at *url*."""
        variables = {**_FOR_ALL, **self.variables}
        return {name: value.replace("{url}", url) for name, value in variables.items()}

    def options(self, url: str) -> list[str]:
        """The arguments that come before the user's, for a gateway at *url*."""
        return [word.replace("{url}", url) for word in self.arguments]


CLIENTS: Mapping[str, Client] = {
    "opencode": Client({"ANTHROPIC_BASE_URL": f"{{url}}{ANTHROPIC}/v1"}),
    "pi": Client(arguments=("--extension", str(Path(__file__).with_name("pi.js")))),
    "gemini": Client({"GOOGLE_GEMINI_BASE_URL": f"{{url}}{GEMINI}"}),
    "kimi": Client(advice=f"{_GATEWAY} as base_url of the provider into kimi's config.toml"),
    "cline": Client(advice=f"{_GATEWAY} by cline auth --provider NAME --baseurl ADDRESS"),
}
"""The agents by the names of their programs, but for codex; others read the variables of all."""
ADVICE = (
    "have its settings take the URL from ANTHROPIC_BASE_URL or OPENAI_BASE_URL, or "
    f"{_GATEWAY} there"
)


def find_client(name: str, environment: Mapping[str, str]) -> Client:
    """What the agent *name* is told in this *environment*."""
    if name == "codex":
        return _codex(environment)
    return CLIENTS.get(name, Client())


def _codex(environment: Mapping[str, str]) -> Client:
    """Codex, whose settings are read, never written.

    Where its user has no plugins, it is told not to download some at its start, which would go past
    the gateway.
    """
    home = Path(environment.get("CODEX_HOME") or Path.home() / ".codex")
    config: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        config = tomllib.loads((home / "config.toml").read_text(encoding="utf-8"))
    setting, upstream = "openai_base_url", str(config.get("openai_base_url", ""))
    name = config.get("model_provider")
    with suppress(OSError, ValueError, LookupError, AttributeError, TypeError):
        if not upstream and name is not None:
            upstream = str(config["model_providers"][name].get("base_url", ""))
            setting = f"model_providers.{name}.base_url"
        elif not upstream and "CODEX_API_KEY" not in environment:
            login = json.loads((home / "auth.json").read_text(encoding="utf-8"))
            upstream = CHATGPT_URL if login.get("tokens") else ""
    arguments = [f'--config={setting}="{{url}}{OPENAI}"']
    if "plugins" not in config and "plugins" not in config.get("features", ()):
        arguments.append("--config=features.plugins=false")
    return Client(arguments=arguments, upstream=upstream)
