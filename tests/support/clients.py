"""Real agents, each run once against a scripted API: bare, or through a gateway."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateways import key
from models import MODEL
from recorder import Recorder
from services import free_port

from ctxpipe.testing import (
    GeminiServer,
    MessagesServer,
    Model,
    OpenAIServer,
    RequestBody,
    Script,
    answer_with,
    text,
    thinking,
    tool_use,
)
from ctxpipe.testing.scripted import ScriptedServer

FOLDER = Path(__file__).parents[1] / "clients"
PACKAGES = FOLDER / "node_modules"
PROGRAMS = FOLDER / ".venv" / "bin"
SECONDS = 300
ROUNDS = 4
LINES = 200
TASK = "Look around, then say done."


@dataclass(frozen=True)
class Limit:
    """Variables and arguments that set a limit, beside what was written to the home folder."""

    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()


@dataclass(frozen=True)
class Client:
    """Agent to run: its *binary*, the *arguments* with the task, and the files that it reads first.

    *configure* writes its settings into a home folder, as for an API at a URL, and adds to its
    environment. *call* has a command run, and *window* is one that it cannot end its task in
    without help. *stored* reads the session that it has left in its home folder, where the
    laboratory reads such sessions. *api* is the API that it asks. One whose model calls in its
    words, without tools, says the results as texts that begin with *observation*.

    `wrap` cannot give its address to one that *has_own_address*, in its settings: a gateway of its
    own runs beside it. *limit* sets the tokens from which on it shortens its history itself, also
    within a task; *limit_tokens* are so few that a long task reaches them. One that
    *counts_itself* compares them with its own history, all others with the usage in the replies.
    """

    binary: Path
    arguments: tuple[str, ...]
    configure: Callable[[Path, str], Mapping[str, str]]
    call: Callable[[str], dict[str, object]]
    window: int
    stored: Callable[[Path], bytes] | None
    thinks: bool = False
    api: type[ScriptedServer] = MessagesServer
    observation: str = ""
    has_own_address: bool = False
    limit: Callable[[Path, int], Limit] | None = None
    limit_tokens: int = 40_000
    counts_itself: bool = False

    @property
    def options(self) -> list[str]:
        """Options of a gateway for this agent."""
        return ["--observation", self.observation] if self.observation else []

    def is_own(self, body: RequestBody) -> bool:
        """Return True if *body* is of the task itself, and not of a title for it."""
        return bool(has_tools(body) or self.observation)


def _claude(home: Path, url: str) -> Mapping[str, str]:
    return {
        "ANTHROPIC_API_KEY": key(),
        "ANTHROPIC_BASE_URL": url,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "IS_SANDBOX": "1",
    }


def _opencode(home: Path, url: str) -> Mapping[str, str]:
    settings = {"permission": "allow", "autoupdate": False, "share": "disabled"}
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text(json.dumps(settings))
    return {"ANTHROPIC_API_KEY": key(), "ANTHROPIC_BASE_URL": f"{url}/v1"}


def _codex(home: Path, url: str) -> Mapping[str, str]:
    folder = home / ".codex"
    folder.mkdir()
    settings = f"""
        model_provider = "tested"
        model = "gpt-5.2"
        [model_providers.tested]
        name = "tested"
        env_key = "OPENAI_API_KEY"
        wire_api = "responses"
        base_url = "{url}/v1"
    """
    (folder / "config.toml").write_text(textwrap.dedent(settings))
    return {"OPENAI_API_KEY": key()}


def _codex_of_openai(home: Path, url: str) -> Mapping[str, str]:
    """Codex at OpenAI's own API, with a key: it asks for a WebSocket first."""
    folder = home / ".codex"
    folder.mkdir()
    settings = f"""
        openai_base_url = "{url}/v1"
        chatgpt_base_url = "{url}"
        [features]
        plugins = false
    """
    (folder / "config.toml").write_text(textwrap.dedent(settings))
    return {"CODEX_API_KEY": key()}


def _codex_of_chatgpt(home: Path, url: str) -> Mapping[str, str]:
    """Codex with the login of a ChatGPT account that is nobody's: it compresses its requests."""
    _codex_of_openai(home, url)
    now = int(time.time())
    account = {
        "chatgpt_plan_type": "pro",
        "chatgpt_user_id": "user-nobody",
        "chatgpt_account_id": "account-nobody",
        "user_id": "user-nobody",
    }
    claims = {
        "iat": now,
        "exp": now + 5 * 24 * 3600,
        "email": "nobody@example.com",
        "https://api.openai.com/auth": account,
    }
    tokens = {
        "id_token": _unsigned_token(claims),
        "access_token": _unsigned_token(claims),
        "refresh_token": "refresh-nobody",
        "account_id": "account-nobody",
    }
    login = {
        "auth_mode": "chatgpt",
        "OPENAI_API_KEY": None,
        "tokens": tokens,
        "last_refresh": time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime()),
    }
    (home / ".codex" / "auth.json").write_text(json.dumps(login))
    return {}


def _unsigned_token(claims: Mapping[str, object]) -> str:
    """A JSON web token that nobody has signed: codex reads its own, and does not check them."""
    parts = [json.dumps({"alg": "none"}), json.dumps(claims), "none"]
    encoded = [base64.urlsafe_b64encode(part.encode()).rstrip(b"=") for part in parts]
    return b".".join(encoded).decode()


def _copilot(
    provider: str, path: str = "", wire: str = ""
) -> Callable[[Path, str], Mapping[str, str]]:
    """GitHub Copilot CLI with a *provider* of this type, at a *path* of the API."""

    def configure(home: Path, url: str) -> Mapping[str, str]:
        settings = {
            "COPILOT_PROVIDER_TYPE": provider,
            "COPILOT_PROVIDER_BASE_URL": f"{url}{path}",
            "COPILOT_PROVIDER_API_KEY": key(),
            "COPILOT_MODEL": MODEL if provider == "anthropic" else "gpt-5.2",
            "COPILOT_OFFLINE": "true",
            "COPILOT_AUTO_UPDATE": "false",
        }
        if wire:
            settings["COPILOT_PROVIDER_WIRE_API"] = wire
        return settings

    return configure


def _pi(home: Path, url: str) -> Mapping[str, str]:
    folder = home / ".pi" / "agent"
    folder.mkdir(parents=True)
    settings = {"providers": {"anthropic": {"baseUrl": url}}}
    (folder / "models.json").write_text(json.dumps(settings))
    return {"ANTHROPIC_API_KEY": key(), "ANTHROPIC_BASE_URL": url}


def _gemini(home: Path, url: str) -> Mapping[str, str]:
    folder = home / ".gemini"
    folder.mkdir()
    settings = {
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    return {
        "GEMINI_API_KEY": key(),
        "GOOGLE_GEMINI_BASE_URL": url,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }


def _continue(home: Path, url: str) -> Mapping[str, str]:
    model = {
        "name": "tested",
        "provider": "anthropic",
        "model": MODEL,
        "apiBase": f"{url}/v1/",
        "apiKey": key(),
        "roles": ["chat"],
        "capabilities": ["tool_use"],
        "defaultCompletionOptions": {"maxTokens": 4096},
    }
    settings = {"name": "tested", "version": "1.0.0", "schema": "v1", "models": [model]}
    folder = home / ".continue"
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps(settings))
    return {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_AUTO_UPDATED": "1"}


def _hermes(home: Path, url: str) -> Mapping[str, str]:
    model = {"provider": "custom", "default": "gpt-5.2"}
    model |= {"base_url": f"{url}/v1", "api_key": key()}
    folder = home / ".hermes"
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps({"model": model}))
    return {"HERMES_HOME": str(folder)}


def _nanobot(home: Path, url: str) -> Mapping[str, str]:
    settings = {
        "providers": {"anthropic": {"apiKey": key(), "apiBase": url}},
        "agents": {"defaults": {"model": MODEL, "provider": "anthropic"}},
    }
    folder = home / ".nanobot"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(settings))
    return {}


def _in_file(name: str, *keys: str | int) -> Callable[[Path, int], Limit]:
    """A limit in the settings in the file *name*, at the place that *keys* name."""

    def limit(home: Path, tokens: int) -> Limit:
        path = home / name
        settings = json.loads(path.read_text()) if path.exists() else {}
        place: Any = settings
        for one in keys[:-1]:
            place = place[one] if isinstance(one, int) else place.setdefault(one, {})
        place[keys[-1]] = tokens
        path.write_text(json.dumps(settings))
        return Limit()

    return limit


def _in_variable(name: str) -> Callable[[Path, int], Limit]:
    """A limit in the environment variable *name*."""
    return lambda _, tokens: Limit({name: str(tokens)})


def _limit_of_opencode(home: Path, tokens: int) -> Limit:
    place = ("provider", "anthropic", "models", MODEL, "limit")
    _in_file(".config/opencode/opencode.json", *place, "output")(home, 8_000)
    return _in_file(".config/opencode/opencode.json", *place, "context")(home, tokens)


def _limit_of_codex(_: Path, tokens: int) -> Limit:
    names = ("model_context_window", "model_auto_compact_token_limit")
    return Limit(arguments=[word for name in names for word in ("--config", f"{name}={tokens}")])


def _mini(home: Path, url: str) -> Mapping[str, str]:
    return {
        "OPENAI_API_KEY": key(),
        "OPENAI_BASE_URL": f"{url}/v1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "true",
        "MSWEA_CONFIGURED": "true",
    }


def only_file(pattern: str) -> Callable[[Path], bytes]:
    """Reads the only file that *pattern* finds in a home folder."""

    def read(home: Path) -> bytes:
        [file] = home.glob(pattern)
        return file.read_bytes()

    return read


def _exported(home: Path) -> bytes:
    """Return what opencode exports of its only session."""
    opencode = str(CLIENTS["opencode"].binary)
    beside: dict[str, Any] = {"env": {"PATH": os.environ["PATH"], "HOME": str(home)}}
    beside |= {"cwd": home / "work", "timeout": SECONDS}
    command = [opencode, "session", "list", "--format", "json"]
    listed = subprocess.run(command, check=True, stdout=subprocess.PIPE, **beside)
    [session] = json.loads(listed.stdout)
    exported = home / "session.json"
    command = [opencode, "export", session["id"]]
    with exported.open("wb") as file:  # into a pipe it writes no more than one buffer
        subprocess.run(command, check=True, stdout=file, **beside)
    return exported.read_bytes()


def _bash(name: str) -> Callable[[str], dict[str, object]]:
    return lambda command: tool_use(name, {"command": command, "description": "look"})


def _in_words(command: str) -> dict[str, object]:
    return text(f"A look.\n\n```mswea_bash_command\n{command}\n```")


def _in_javascript(command: str) -> dict[str, object]:
    """The call of codex's tool ``exec``, by which its newest models call all others."""
    call = json.dumps({"cmd": command})
    return tool_use("exec", f"const done = await tools.exec_command({call});\ntext(done.output);")


CODEX = PACKAGES / "@openai/codex-linux-x64/vendor/x86_64-unknown-linux-musl/bin/codex"
CODEX_ARGUMENTS = (
    *("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    TASK,
)
COPILOT = PACKAGES / "@github/copilot-linux-x64/copilot"
COPILOT_ARGUMENTS = ("-p", TASK, "--allow-all-tools")


def _copilot_client(provider: str, path: str = "", wire: str = "", **fields: Any) -> Client:
    """Return GitHub Copilot CLI with a *provider* of this type and further *fields* of a client."""
    configure = _copilot(provider, path, wire)
    stored = only_file(".copilot/session-state/*/events.jsonl")
    return Client(
        COPILOT,
        COPILOT_ARGUMENTS,
        configure,
        _bash("bash"),
        30_000,
        stored,
        limit=_in_variable("COPILOT_PROVIDER_MAX_PROMPT_TOKENS"),
        counts_itself=True,
        **fields,
    )


CLIENTS: Mapping[str, Client] = {
    "claude": Client(
        PACKAGES / "@anthropic-ai/claude-code-linux-x64/claude",
        ("-p", TASK, "--allowedTools", "Bash", "--output-format", "json"),
        _claude,
        _bash("Bash"),
        24_000,
        only_file(".claude/projects/*/*.jsonl"),
        thinks=True,
        limit=_in_variable("CLAUDE_CODE_AUTO_COMPACT_WINDOW"),
        limit_tokens=60_000,
    ),
    "opencode": Client(
        PACKAGES / "opencode-linux-x64/bin/opencode",
        ("run", "-m", f"anthropic/{MODEL}", TASK),
        _opencode,
        _bash("bash"),
        16_000,
        _exported,
        limit=_limit_of_opencode,
    ),
    "codex": Client(
        CODEX,
        CODEX_ARGUMENTS,
        _codex,
        lambda command: tool_use("exec_command", {"cmd": command}),
        20_000,
        only_file(".codex/sessions/**/rollout-*.jsonl"),
        api=OpenAIServer,
        limit=_limit_of_codex,
    ),
    "codex-key": Client(
        CODEX,
        CODEX_ARGUMENTS,
        _codex_of_openai,
        _in_javascript,
        30_000,
        only_file(".codex/sessions/**/rollout-*.jsonl"),
        thinks=True,
        api=OpenAIServer,
    ),
    "codex-chatgpt": Client(
        CODEX,
        CODEX_ARGUMENTS,
        _codex_of_chatgpt,
        _in_javascript,
        30_000,
        only_file(".codex/sessions/**/rollout-*.jsonl"),
        thinks=True,
        api=OpenAIServer,
    ),
    "copilot": _copilot_client("anthropic", thinks=True),
    "copilot-chat": _copilot_client("openai", "/v1", "completions", api=OpenAIServer),
    "copilot-responses": _copilot_client("openai", "/v1", "responses", api=OpenAIServer),
    "pi": Client(
        PACKAGES / ".bin/pi",
        ("--provider", "anthropic", "--model", MODEL, "-p", TASK),
        _pi,
        _bash("bash"),
        14_000,
        only_file(".pi/agent/sessions/*/*.jsonl"),
    ),
    "gemini": Client(
        PACKAGES / ".bin/gemini",
        ("-m", "gemini-3-pro-preview", "--approval-mode", "yolo", "-p", TASK),
        _gemini,
        _bash("run_shell_command"),
        16_000,
        only_file(".gemini/tmp/*/chats/session-*.jsonl"),
        api=GeminiServer,
    ),
    "continue": Client(
        PACKAGES / ".bin/cn",
        ("--auto", "-p", TASK),
        _continue,
        _bash("Bash"),
        14_000,
        None,
        has_own_address=True,
        limit=_in_file(
            ".continue/config.yaml",
            *("models", 0, "defaultCompletionOptions", "contextLength"),
        ),
        counts_itself=True,
    ),
    "hermes": Client(
        FOLDER / ".venvs" / "hermes" / "bin" / "hermes",
        ("chat", "--quiet", "--yolo", "--query", TASK),
        _hermes,
        lambda command: tool_use("terminal", {"command": command}),
        24_000,
        None,
        api=OpenAIServer,
        has_own_address=True,
        limit=_in_file(".hermes/config.yaml", "model", "context_length"),
        limit_tokens=64_000,  # it refuses fewer
        counts_itself=True,
    ),
    "nanobot": Client(
        FOLDER / ".venvs" / "nanobot" / "bin" / "nanobot",
        ("agent", "--message", TASK),
        _nanobot,
        lambda command: tool_use("exec", {"command": command}),
        16_000,
        None,
        has_own_address=True,
        limit=_in_file(".nanobot/config.json", *("agents", "defaults", "contextWindowTokens")),
        limit_tokens=100_000,
        counts_itself=True,
    ),
    "mini-swe-agent": Client(
        PROGRAMS / "mini",
        (
            *("-c", "mini_textbased.yaml", "--model-class", "litellm_textbased"),
            *("-m", "openai/gpt-5.2"),
            *("-y", "--exit-immediately", "-t", TASK),
        ),
        _mini,
        _in_words,
        12_000,
        only_file(".config/mini-swe-agent/last_mini_run.traj.json"),
        api=OpenAIServer,
        observation="<returncode>",
    ),
}


def session_file(name: str) -> Callable[[Path], bytes]:
    """Reads the session that the client *name* has left in its home folder."""
    stored = CLIENTS[name].stored
    assert stored is not None, f"the laboratory does not read what {name} stores"
    return stored


RECORDED: Mapping[str, str] = {
    "claude": "@anthropic-ai/claude-code",
    "codex-key": "@openai/codex",
    "codex-chatgpt": "@openai/codex",
    "gemini": "@google/gemini-cli",
    "copilot": "@github/copilot",
    "copilot-chat": "@github/copilot",
    "copilot-responses": "@github/copilot",
    "opencode": "opencode-ai",
}
"""The clients whose requests are kept (tests/clients/record.py), and the packages they are in."""


@dataclass(frozen=True)
class Run:
    """Record of what a *client* has done."""

    client: Client
    status: int
    output: str
    error: str
    api: ScriptedServer

    @property
    def refused(self) -> list[str]:
        """The rules that its requests have broken."""
        return [problem for request in self.api.requests for problem in request.problems]

    @property
    def cached(self) -> float:
        """The share of the prompts after the first that was read from the cache."""
        bills = [request.usage for request in self.api.requests if request.usage is not None]
        later = [bill for bill in bills if bill.total > bills[0].total or bill is not bills[0]]
        read = sum(bill.cache_read_input_tokens for bill in later)
        return read / sum(bill.total for bill in later)

    @property
    def breaks(self) -> int:
        """Number of requests of the agent that do not begin as the one before, but for marks."""
        own = filter(self.client.is_own, (request.body for request in self.api.requests))
        sent = list(map(parts_of, own))
        pairs = itertools.pairwise(sent)
        return sum(after[: len(before)] != before for before, after in pairs)


def parts_of(body: RequestBody) -> list[object]:
    """Return the parts of *body* from its beginning on."""
    given: Mapping[str, Any] = body
    head = [given.get(name) for name in ("tools", "system", "instructions", "systemInstruction")]
    items = next(given[name] for name in ("messages", "input", "contents") if name in given)
    parts: list[object] = json.loads(json.dumps([*head, *items]), object_hook=_in_one_form)
    return parts


def _in_one_form(value: dict[str, object]) -> dict[str, object]:
    """*value* without its cache mark, and a text as the block that the API reads it as."""
    parts = {name: one for name, one in value.items() if name != "cache_control"}
    if isinstance(parts.get("content"), str):
        parts["content"] = [{"type": "text", "text": parts["content"]}]
    return parts


@asynccontextmanager
async def gateways(
    upstream: str, root: Path, options: Sequence[str], count: int
) -> AsyncIterator[str]:
    """The URL at which *count* gateways with these *options* listen."""
    port = free_port()
    command = [sys.executable, "-m", "ctxpipe", "gateway", "--upstream", upstream]
    command += ["--listen", f"127.0.0.1:{port}", "--root", str(root), *options]
    started: list[asyncio.subprocess.Process] = []
    with (root.parent / "gateway.log").open("ab") as log:
        try:
            for _ in range(count):
                process = await asyncio.create_subprocess_exec(
                    *command, stdout=subprocess.PIPE, stderr=log
                )
                started.append(process)
                assert process.stdout is not None
                assert await process.stdout.readline()
            yield f"http://127.0.0.1:{port}"
        finally:
            for process in started:
                process.kill()
                await process.communicate()


async def run_client(
    name: str,
    home: Path,
    *,
    is_wrapped: bool = False,
    trial: Sequence[str] | None = None,
    journal: str | None = None,
    window: int = 200_000,
    limit: int | None = None,
    arguments: Sequence[str] | None = None,
    script: Script | None = None,
    recorder: Recorder | None = None,
    running: ScriptedServer | None = None,
) -> Run:
    """Run the client *name* in the empty folder *home*.

    It is bare, wrapped as a user does it, or before two gateways with one *journal*. *limit* is the
    number of tokens at which it shortens its history itself. *arguments* replace its own; *script*
    is what the API answers. *recorder* keeps what it sends. *running* is an API that answers
    several runs.
    """
    client = CLIENTS[name]
    work = home / "work"
    work.mkdir(parents=True, exist_ok=True)
    async with AsyncExitStack() as stack:
        api = running
        if api is None:
            scripted = client.api(
                script or look_around(client, _command, ROUNDS, 2 * ROUNDS),
                model=Model(window=window),
            )
            api = await stack.enter_async_context(scripted)
        url = api.url
        if journal is not None or (is_wrapped and client.has_own_address):
            options = [*client.options, *(["--journal", journal] if journal is not None else [])]
            count = 1 if journal is None else 2
            url = await stack.enter_async_context(
                gateways(api.url, work / ".ctxpipe", options, count)
            )
        if recorder is not None:
            url = await stack.enter_async_context(recorder.before(api.url, home / "recorder"))
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            **client.configure(home, url),
        }
        command = [str(client.binary), *(client.arguments if arguments is None else arguments)]
        if limit is not None and client.limit is not None:
            limited = client.limit(home, limit)
            environment |= limited.variables
            command[1:1] = limited.arguments
        if trial is not None or (is_wrapped and not client.has_own_address):
            way = ["wrap", *client.options] if trial is None else ["trial", *trial]
            command = [sys.executable, "-m", "ctxpipe", *way, "--", *command]
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            output, error = await asyncio.wait_for(process.communicate(), SECONDS)
        except TimeoutError:
            process.kill()
            output, error = await process.communicate()
            error += f"\nkilled after {SECONDS} seconds".encode()
    return Run(client, process.returncode or 0, output.decode(), error.decode(), api)


def look_around(
    client: Client, command_of: Callable[[str], str], rounds: int, single_rounds: int
) -> Script:
    """Return the script of a model that has two commands run in each of *rounds*, and is done.

    *command_of* returns the command about something. A model that calls in its words has one
    command run at a time, in *single_rounds*, and the last one says that it is done.
    """
    if client.observation:
        commands = [command_of(f"round {number}") for number in range(single_rounds)]
        commands.append("printf 'COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\\nDone.\\n'")
        return [answer_with(client.call(command)) for command in commands]

    def reply(body: RequestBody) -> Any:
        if not has_tools(body):
            return "A title"
        done = result_count(body) // 2
        thought = [thinking(f"round {done}")] if client.thinks else []
        if done >= rounds:
            return answer_with(*thought, text("Done."))
        calls = [client.call(command_of(f"{side} {done}")) for side in ("left", "right")]
        return answer_with(*thought, *calls)

    return reply


LONG_ROUNDS = 14


def long_script(client: Client) -> Script:
    """A model that has two commands run at a time, LONG_ROUNDS times, and is done.

    If it is asked for a summary, it writes one. What it has done it counts itself: a client that
    has summarized sends fewer results.
    """
    done = 0

    def reply(body: RequestBody) -> Any:
        nonlocal done
        given: Mapping[str, Any] = body
        items = next(given[name] for name in ("messages", "input", "contents") if name in given)
        if not has_tools(body) or (done and "summar" in json.dumps(items[-1]).lower()):
            return "It has looked around."
        done += 1
        if done > LONG_ROUNDS:
            return "Done."
        calls = [client.call(_command(f"{side} {done}")) for side in ("left", "right")]
        return answer_with(*calls)

    return reply


def has_tools(body: RequestBody) -> bool:
    """Return True if *body* defines tools: beside its items, or in the first of them."""
    given: Mapping[str, Any] = body
    items = given.get("input")
    first = items[0] if isinstance(items, list) and items else {}
    return bool(given.get("tools") or first.get("tools"))


def result_count(body: RequestBody) -> int:
    """Return the number of results of calls in *body*."""
    given: Mapping[str, Any] = body
    number = sum("call_output" in str(item.get("type")) for item in given.get("input", ()))
    for content in given.get("contents", ()):
        number += sum("functionResponse" in part for part in content["parts"])
    for message in given.get("messages", ()):
        content = message.get("content")
        number += message.get("role") == "tool"
        if isinstance(content, list):
            number += sum(block.get("type") == "tool_result" for block in content)
    return number


def _command(what: str) -> str:
    return f"seq -f 'line %g of {what} with some words to fill it' {LINES}"
