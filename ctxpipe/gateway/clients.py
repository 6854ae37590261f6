"""The agents that ``ctxpipe wrap`` knows: what tells each of them where the gateway is."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

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
    gateway's address, {setting} the `codex_setting`. *advice* is for an agent that only its own
    settings can tell.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    advice: str = ""

    def environment(self, url: str) -> dict[str, str]:
        """The variables of the agent's environment, for a gateway at *url*."""
        variables = {**_FOR_ALL, **self.variables}
        return {name: value.replace("{url}", url) for name, value in variables.items()}

    def options(self, url: str, setting: str) -> list[str]:
        """The arguments that come before the user's."""
        return [word.replace("{url}", url).replace("{setting}", setting) for word in self.arguments]


CLIENTS: Mapping[str, Client] = {
    "opencode": Client({"ANTHROPIC_BASE_URL": f"{{url}}{ANTHROPIC}/v1"}),
    "codex": Client(arguments=(f'--config={{setting}}="{{url}}{OPENAI}"',)),
    "pi": Client(arguments=("--extension", str(Path(__file__).with_name("pi.js")))),
    "gemini": Client({"GOOGLE_GEMINI_BASE_URL": f"{{url}}{GEMINI}"}),
    "kimi": Client(advice=f"{_GATEWAY} as base_url of the provider into kimi's config.toml"),
    "cline": Client(advice=f"{_GATEWAY} by cline auth --provider NAME --baseurl ADDRESS"),
}
"""The agents by the names of their programs; what is not here reads the variables of all."""
ADVICE = (
    "have its settings take the URL from ANTHROPIC_BASE_URL or OPENAI_BASE_URL, or "
    f"{_GATEWAY} there"
)


def codex_setting(environment: Mapping[str, str]) -> tuple[str, str]:
    """Which setting of codex says where its requests go, and what it says; "" where it is not set.

    Its settings are read, never written.
    """
    home = Path(environment.get("CODEX_HOME") or Path.home() / ".codex")
    with suppress(OSError, ValueError, LookupError, AttributeError):
        settings = tomllib.loads((home / "config.toml").read_text(encoding="utf-8"))
        if "openai_base_url" in settings:
            return "openai_base_url", str(settings["openai_base_url"])
        name = settings["model_provider"]
        provider = settings["model_providers"][name]
        return f"model_providers.{name}.base_url", str(provider.get("base_url", ""))
    with suppress(OSError, ValueError, AttributeError):
        login = json.loads((home / "auth.json").read_text(encoding="utf-8"))
        if login.get("tokens") and "CODEX_API_KEY" not in environment:
            return "openai_base_url", CHATGPT_URL
    return "openai_base_url", ""
