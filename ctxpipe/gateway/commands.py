"""The commands ``ctxpipe gateway`` and ``ctxpipe wrap``."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from ..errors import CtxpipeError, SettingsError
from ..providers.prices import FIVE_MINUTES
from ..settings import excerpt
from ..storage.ownership import StorageRoot
from .guard import is_loopback
from .record import logger
from .settings import ANTHROPIC, GEMINI, OPENAI, Settings, read_tokens

if TYPE_CHECKING:
    from .serving import Serving

ANTHROPIC_URL = "https://api.anthropic.com"
OPENAI_URL = "https://api.openai.com/v1"
GEMINI_URL = "https://generativelanguage.googleapis.com"
LOG = "gateway.log"
START_SECONDS = 60.0

Root = Annotated[
    Path,
    typer.Option(
        file_okay=False,
        help="The folder for what leaves the contexts, and for journals. Below the agent's own "
        "folder its tools can read from it.",
    ),
]
NoFiles = Annotated[
    bool, typer.Option("--no-files", help="Write nothing: compact and truncate only.")
]
Preset = Annotated[
    str,
    typer.Option(
        help="What shapes the requests: coding, lean, chat, or a pipeline in a FILE.toml."
    ),
]
Window = Annotated[
    int | None,
    typer.Option(
        help="Tokens that the model takes; default: 200,000, or less where that is known of the "
        "model or a refusal names less, and a million where the request asks for it.",
        min=1_000,
    ),
]
CacheSeconds = Annotated[
    float,
    typer.Option(
        help="How long the provider's prompt cache keeps; from 3600 on, cache marks are for an "
        "hour.",
        min=0,
    ),
]
WorkDir = Annotated[
    Path | None,
    typer.Option(help="The folder of the agent's files, to be read again after a compaction."),
]
Pins = Annotated[
    list[str],
    typer.Option(
        "--pin",
        help="Messages in which the user says this text stay word for word; may be repeated.",
    ),
]
Observation = Annotated[
    str, typer.Option(help="Messages of the user that begin with this text are results of calls.")
]
SummaryModel = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The model that writes summaries, asked at the request's own upstream with the "
        "client's own key; default: none, they are collected from the conversation.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Send every request as it came; say what would be saved.")
]


def gateway(
    upstream: Annotated[
        str, typer.Option(help="Where requests go, such as https://api.anthropic.com.")
    ],
    listen: Annotated[
        str, typer.Option(help="Address and port; port 0 takes a free one.")
    ] = "127.0.0.1:8787",
    root: Root = Path(".ctxpipe"),
    no_files: NoFiles = False,
    preset: Preset = "coding",
    window: Window = None,
    cache_seconds: CacheSeconds = FIVE_MINUTES,
    work_dir: WorkDir = None,
    pin: Pins = [],  # noqa: B006  typer copies it
    observation: Observation = "",
    summary_model: SummaryModel = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="Tokens of 16 characters or more, one a line, that clients must show."),
    ] = None,
    show_texts: Annotated[
        bool, typer.Option("--show-texts", help="Show texts on the page, and not only counts.")
    ] = False,
    dry_run: DryRun = False,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Where several gateways keep their sessions in common: sqlite:///FILE, "
            "postgres://HOST/DATABASE, redis://HOST or s3://BUCKET/PREFIX. They may listen on one "
            "port, and need one root.",
        ),
    ] = None,
) -> None:
    """Shape the requests of any client that takes a base URL, on their way to the upstream.

    The address is the first line on standard output; a line for each turn goes to standard error.
    Needs the extra gateway.
    """
    tokens: Sequence[str] = ()
    if token_file is not None:
        tokens = read_tokens(token_file)
    settings = Settings(
        {"": upstream},
        None if no_files else root,
        address=_address(listen),
        preset=preset,
        window=window,
        cache_seconds=cache_seconds,
        work_dir=work_dir,
        pin=pin,
        observation=observation,
        summary_model=summary_model,
        tokens=tokens,
        show_texts=show_texts,
        dry_run=dry_run,
        journal=journal,
    )
    serving = open_serving(settings)
    stopped = threading.Event()
    with (
        log_to(logging.StreamHandler()),
        serve(serving, serving.run_alone),
        on_signals(lambda _: stopped.set()),
    ):
        print(json.dumps({"listening": serving.url}), flush=True)
        stopped.wait()
    print(f"ctxpipe gateway: {serving.gateway.record}", file=sys.stderr)


def wrap(
    command: Annotated[
        list[str], typer.Argument(help="The agent and its arguments, after --.", metavar="-- AGENT")
    ],
    root: Root = Path(".ctxpipe"),
    no_files: NoFiles = False,
    preset: Preset = "coding",
    window: Window = None,
    cache_seconds: CacheSeconds = FIVE_MINUTES,
    work_dir: WorkDir = None,
    pin: Pins = [],  # noqa: B006  typer copies it
    observation: Observation = "",
    summary_model: SummaryModel = None,
    dry_run: DryRun = False,
) -> None:
    """Run an agent through a gateway of its own: ctxpipe wrap -- claude.

    The agent finds the gateway by ANTHROPIC_BASE_URL, OPENAI_BASE_URL, GOOGLE_GEMINI_BASE_URL and,
    if GitHub Copilot CLI has a provider, COPILOT_PROVIDER_BASE_URL; what these say now is where its
    requests go. Claude Code gets the tools that read back, too; codex and pi are told in the ways
    that they know. Terminal, signals and the exit status pass through. While it runs, lines go to a
    log file in the root; the sum follows on standard error. Needs the extra gateway.
    """
    name = Path(command[0]).stem
    client = find_client(name, os.environ)
    settings = Settings(
        client.upstreams(os.environ),
        None if no_files else root.resolve(),
        preset=preset,
        window=window,
        cache_seconds=cache_seconds,
        work_dir=work_dir,
        pin=pin,
        observation=observation,
        summary_model=summary_model,
        dry_run=dry_run,
    )
    serving = open_serving(settings)
    handler: logging.Handler = logging.NullHandler()
    if settings.root is not None and not dry_run:
        handler = log_file(settings.root)
    past = client.past_gateway(name)
    if client.advice:
        print(f"ctxpipe: {past}", file=sys.stderr)
    with log_to(handler), serve(serving, serving.run_alone):
        environment = {**os.environ, **client.environment(serving.url)}
        status = _run(client.command(command, serving.url, serving.reader_url), environment)
    record = serving.gateway.record
    end = "" if record.number or record.passed else f"; {past}"
    print(f"ctxpipe: {record}{end}", file=sys.stderr)
    raise typer.Exit(status)


def _address(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise SettingsError(f"listen is {excerpt(listen)}; give 127.0.0.1:8787, or a port of 0")
    if host == "localhost" and is_loopback(host):
        host = "127.0.0.1"
    return host, int(port)


def open_serving(settings: Settings) -> Serving:
    """A gateway with *settings*. Raises SettingsError where there can be none."""
    try:
        from .serving import Serving
    except ImportError as missing:
        raise SettingsError(
            f"the gateway needs {missing.name}: pip install 'ctxpipe[gateway]'"
        ) from missing
    try:
        return Serving(settings)
    except OSError as error:
        where = "{}:{}".format(*settings.address)
        why = error.strerror or "no reason is given"
        if error.errno == errno.EADDRINUSE:
            why += "; several gateways share a port where each is given the same --journal"
        raise SettingsError(f"{where} cannot be listened on: {why}") from error


@contextmanager
def log_to(handler: logging.Handler) -> Iterator[None]:
    """Meanwhile the gateway's lines, and all warnings of this process, go to *handler*."""
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    before = logger.level
    whole = logging.getLogger()
    whole.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        whole.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


def log_file(root: Path) -> logging.Handler:
    """Appends to the log in *root*, which is made where it is not there."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    # Through the storage: only a root that is still empty is marked, and kept out of git.
    with StorageRoot(str(root)).folder("", create=True) as folder:
        os.close(os.open(LOG, flags, 0o600, dir_fd=folder))
    return logging.FileHandler(root / LOG)


@contextmanager
def serve(serving: Serving, run: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Meanwhile *serving* runs, by its *run* or *run_alone*, beside the caller's thread."""
    thread = threading.Thread(target=anyio.run, args=(run,), daemon=True)
    thread.start()
    try:
        if not serving.wait(START_SECONDS):
            raise CtxpipeError("the gateway does not start")
        yield
    finally:
        serving.stop()
        thread.join()


def start(command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start *command*, with *options* of Popen. Raises SettingsError where it cannot be run."""
    try:
        return subprocess.Popen(command, **options)  # noqa: S603  what the user has typed
    except OSError as error:
        raise SettingsError(f"{command[0]} cannot be run: {error.strerror}") from error


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run *command* at this terminal; its exit status, as a shell tells it."""
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def pass_on(number: int) -> None:
        # Ctrl-C reaches the agent from the terminal itself; whether it ends is its own business.
        if number == signal.SIGINT:
            return
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # First the handlers: a signal must find them as soon as the agent is there.
    with on_signals(pass_on):
        child = start(command, env=environment)
        for number in early:
            child.send_signal(number)
        status = child.wait()
    if status < 0:
        return 128 - status
    return status


@contextmanager
def on_signals(act: Callable[[int], object]) -> Iterator[None]:
    """Meanwhile *act* on the signals that ask a program to end, instead of ending."""
    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda given, _: act(given))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# What each agent is told --------------------------------------------------------------------------

COPILOT = "/copilot"
"""The beginning of the paths at which the provider that GitHub Copilot CLI names is served."""
COPILOT_URL = "COPILOT_PROVIDER_BASE_URL"
COPILOT_TYPE = "COPILOT_PROVIDER_TYPE"
"""The variables in which GitHub Copilot CLI has the address of a provider, and its type."""
CHATGPT_URL = "https://chatgpt.com/backend-api/codex"

_FOR_ALL = {
    "ANTHROPIC_BASE_URL": f"{{url}}{ANTHROPIC}",
    "OPENAI_BASE_URL": f"{{url}}{OPENAI}",
    "GOOGLE_GEMINI_BASE_URL": f"{{url}}{GEMINI}",
}
_GATEWAY = "run ctxpipe gateway --upstream URL, and write its address"


@dataclass(frozen=True, slots=True)
class Client:
    """What is set for an agent beside the variables of all.

    *variables* are of its environment, *arguments* come before the user's; {url} in them is the
    gateway's address. *upstream* is where its own settings send requests, "" where they do not say.
    *advice* is for an agent that only its own settings can tell. *reader_option* takes the servers
    of the Model Context Protocol.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    upstream: str = ""
    advice: str = ""
    reader_option: str = ""

    def environment(self, url: str) -> dict[str, str]:
        """The variables of the agent's environment, for a gateway at *url*."""
        variables = {**_FOR_ALL, **self.variables}
        return {name: value.replace("{url}", url) for name, value in variables.items()}

    def command(self, command: Sequence[str], url: str, reader_url: str | None) -> list[str]:
        """The user's *command*, and what tells it of a gateway at *url*.

        *reader_url* is where the tools that read back are; None where there are none.
        """
        options = [word.replace("{url}", url) for word in self.arguments]
        if reader_url is not None and self.reader_option:
            # It waits for what is always loaded: tools that come after the first request would
            # change the beginning of the prompt, and what is cached of it would be lost.
            server = {"type": "http", "url": reader_url, "alwaysLoad": True}
            # One word: as two it would take the words after it, too.
            options.append(
                f"{self.reader_option}={json.dumps({'mcpServers': {'ctxpipe': server}})}"
            )
        return [command[0], *options, *command[1:]]

    def upstreams(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Where the agent's requests go without a gateway, by the paths under which it serves."""
        anthropic_url = environment.get("ANTHROPIC_BASE_URL") or ANTHROPIC_URL
        upstreams = {
            ANTHROPIC: anthropic_url.rstrip("/").removesuffix("/v1"),  # as some clients have it
            OPENAI: self.upstream or environment.get("OPENAI_BASE_URL") or OPENAI_URL,
            GEMINI: environment.get("GOOGLE_GEMINI_BASE_URL") or GEMINI_URL,
        }
        copilot_url = _copilot_upstream(environment)
        if copilot_url:
            upstreams[COPILOT] = copilot_url
        return upstreams

    def past_gateway(self, name: str) -> str:
        """That the agent *name* goes past the gateway, and what helps."""
        return f"{name} goes past the gateway: {self.advice or ADVICE}"


CLIENTS: Mapping[str, Client] = {
    "claude": Client(reader_option="--mcp-config"),
    "pi": Client(arguments=("--extension", str(Path(__file__).with_name("pi.js")))),
    "kimi": Client(advice=f"{_GATEWAY} as base_url of the provider into kimi's config.toml"),
    "copilot": Client(
        advice=f"what it asks of GitHub's models cannot be shaped; for a provider of your own set "
        f"{COPILOT_TYPE} and {COPILOT_URL}"
    ),
    "cline": Client(advice=f"{_GATEWAY} by cline auth --provider NAME --baseurl ADDRESS"),
}
"""The agents by the names of their programs, but for codex; others read the variables of all."""
ADVICE = (
    "have its settings take the URL from ANTHROPIC_BASE_URL or OPENAI_BASE_URL, or "
    f"{_GATEWAY} there"
)


def find_client(name: str, environment: Mapping[str, str]) -> Client:
    """Return what the agent *name* is told in this *environment*."""
    client = _codex(environment) if name == "codex" else CLIENTS.get(name, Client())
    if not _copilot_upstream(environment):
        return client
    # Whatever the name: a script may start it. Its provider is served at a path of its own, so the
    # requests of other agents do not go there.
    variables = {**client.variables, COPILOT_URL: f"{{url}}{COPILOT}"}
    advice = "" if name == "copilot" else client.advice
    return replace(client, variables=variables, advice=advice)


def _copilot_upstream(environment: Mapping[str, str]) -> str:
    """Return where GitHub Copilot CLI sends requests, "" if it asks GitHub's own models.

    With a type alone that is the API of that name.
    """
    defaults = {"anthropic": ANTHROPIC_URL, "openai": OPENAI_URL}
    provider = environment.get(COPILOT_TYPE, "").strip().lower()
    return environment.get(COPILOT_URL) or defaults.get(provider, "")


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
