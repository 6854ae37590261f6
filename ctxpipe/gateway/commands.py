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
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer

from .._text import count_phrase
from ..errors import CtxpipeError, SettingsError
from ..settings import excerpt
from ..storage.ownership import StorageRoot
from .guard import is_loopback
from .logs import LogFormat, formatter_of
from .options import with_common_options
from .record import logger
from .settings import (
    ANTHROPIC,
    BODY_SECONDS,
    DRAIN_SECONDS,
    GEMINI,
    KEEP_ALIVE_SECONDS,
    OPENAI,
    GatewaySettings,
)
from .tokens import read_tokens

if TYPE_CHECKING:
    from .app import Gateway
    from .serving import Serving

ANTHROPIC_URL = "https://api.anthropic.com"
OPENAI_URL = "https://api.openai.com/v1"
GEMINI_URL = "https://generativelanguage.googleapis.com"
LOG = "gateway.log"
START_SECONDS = 60.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that `gateway` acts on and `wrap` passes on to the agent."""
WAIT_SECONDS = 0.5
"""Seconds after which a wait in the main thread begins again.

Python calls the handler of a signal between two steps of the main thread. A signal does not end a
wait of this thread if it arrives just before, or if the system gives it to another thread, as it
often does after a pause. Its handler is called when the wait ends.
"""


@with_common_options
def gateway(
    *,
    upstream: Annotated[
        str, typer.Option(help="Where requests go, such as https://api.anthropic.com.")
    ],
    listen: Annotated[
        str, typer.Option(help="Address and port; port 0 takes a free one.")
    ] = "127.0.0.1:8787",
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A file with tokens that clients must show: on each line a token of 16 characters "
            "or more, and after it name=NAME, expires=2027-01-31 and operator=yes if you like."
        ),
    ] = None,
    show_texts: Annotated[
        bool, typer.Option("--show-texts", help="Show texts on the page, not only counts.")
    ] = False,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The database or bucket in which several gateways share their sessions: "
            "sqlite:///FILE, postgres://HOST/DATABASE, redis://HOST or s3://BUCKET/PREFIX. They "
            "may listen on one port, and need the same root.",
        ),
    ] = None,
    log_format: Annotated[
        LogFormat, typer.Option(help="Lines of text, or a JSON object on each line.")
    ] = "text",
    timeout_keep_alive: Annotated[
        int, typer.Option(min=0, help="Seconds after which an idle connection is closed.")
    ] = KEEP_ALIVE_SECONDS,
    timeout_body: Annotated[
        float, typer.Option(help="Seconds after which a body that stops arriving is refused.")
    ] = BODY_SECONDS,
    drain_seconds: Annotated[
        int, typer.Option(min=0, help="Seconds that open replies get to end after SIGTERM.")
    ] = DRAIN_SECONDS,
    shared: dict[str, Any],
) -> None:
    """Shape the requests of any client that takes a base URL, on their way to the upstream.

    The address is the first line on standard output; a line for each turn goes to standard error.
    SIGHUP reads the token file and the pipeline's file again. Needs the extra gateway.
    """
    settings = GatewaySettings(
        upstreams={"": upstream},
        address=_address(listen),
        tokens=[] if token_file is None else read_tokens(token_file),
        show_texts=show_texts,
        journal=journal,
        timeout_keep_alive=timeout_keep_alive,
        timeout_body=timeout_body,
        drain_seconds=drain_seconds,
        **shared,
    )
    signals: SimpleQueue[int] = SimpleQueue()
    # A request to reload that arrives during the start must not end the process.
    with on_signals(signals.put, [signal.SIGHUP]), log_to(logging.StreamHandler(), log_format):
        serving = open_serving(settings)
        with serve(serving, serving.run_alone), on_signals(signals.put):
            print(json.dumps({"listening": serving.url}), flush=True)
            while next_signal(signals) == signal.SIGHUP:
                _reload(serving.gateway, token_file)
        if log_format == "json":
            logger.info("stopped: %s", serving.gateway.record)
    if log_format == "text":
        print(f"ctxpipe gateway: {serving.gateway.record}", file=sys.stderr)


def _reload(gateway: Gateway, token_file: Path | None) -> None:
    """Read the token file and the pipeline of *gateway* again; log whether that succeeded."""
    try:
        gateway.reload([] if token_file is None else read_tokens(token_file))
    except SettingsError as error:
        logger.warning("nothing was reloaded, and the previous settings stay: %s", error)
    else:
        logger.info("reloaded: %s, and the pipeline", count_phrase(gateway.token_count, "token"))


@with_common_options
def wrap(
    *,
    command: Annotated[
        list[str], typer.Argument(help="The agent and its arguments, after --.", metavar="-- AGENT")
    ],
    shared: dict[str, Any],
) -> None:
    """Run an agent through a gateway of its own: ctxpipe wrap -- claude.

    The agent finds the gateway by ANTHROPIC_BASE_URL, OPENAI_BASE_URL, GOOGLE_GEMINI_BASE_URL and,
    if GitHub Copilot CLI has a provider, COPILOT_PROVIDER_BASE_URL; the gateway sends the requests
    to the URLs that these variables have now. Claude Code also gets the tools that read offloaded
    texts; codex and pi are configured by their own options. Terminal, signals and the exit status
    pass through. While the agent runs, log lines go to a file in the root; the totals follow on
    standard error. Needs the extra gateway.
    """
    name = Path(command[0]).stem
    client = find_client(name, os.environ)
    settings = GatewaySettings(upstreams=client.upstreams(os.environ), **shared)
    if settings.root is not None:
        settings = replace(settings, root=settings.root.resolve())
    serving = open_serving(settings)
    handler: logging.Handler = logging.NullHandler()
    if settings.root is not None and not settings.dry_run:
        handler = log_file(settings.root)
    past = client.past_gateway(name)
    if client.advice:
        print(f"ctxpipe: {past}", file=sys.stderr)
    with log_to(handler), serve(serving, serving.run_alone):
        environment = {**os.environ, **client.environment(serving.url)}
        status = _run(client.command(command, serving.url, serving.reader_url), environment)
    record = serving.gateway.record
    end = "" if record.number or record.outcomes["passed"] else f"; {past}"
    print(f"ctxpipe: {record}{end}", file=sys.stderr)
    raise typer.Exit(status)


def _address(listen: str) -> tuple[str, int]:
    """Return the host and port of *listen*, such as ``127.0.0.1:8787`` or ``[::1]:0``.

    The host ``localhost`` becomes 127.0.0.1 if it is a name of this machine. Raises SettingsError
    if host or port is missing, or the port is above 65535.
    """
    host, _, port = listen.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise SettingsError(f"listen is {excerpt(listen)}; give 127.0.0.1:8787, or a port of 0")
    if host == "localhost" and is_loopback(host):
        host = "127.0.0.1"
    return host, int(port)


def open_serving(settings: GatewaySettings) -> Serving:
    """Return a gateway that listens at the address in *settings*.

    Raises SettingsError if a package is missing or the address cannot be listened on.
    """
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
            why += "; give another port with --listen, or the same --journal to all on this port"
        raise SettingsError(f"{where} cannot be listened on: {why}") from error


@contextmanager
def log_to(handler: logging.Handler, log_format: LogFormat = "text") -> Iterator[None]:
    """Send the gateway's log lines, and all warnings of this process, to *handler* in the block."""
    handler.setFormatter(formatter_of(log_format))
    previous_level = logger.level
    root_logger = logging.getLogger()
    root_logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        root_logger.removeHandler(handler)
        logger.setLevel(previous_level)
        handler.close()


def log_file(root: Path) -> logging.Handler:
    """Return a handler that appends to the log in *root*, and create the folder if necessary."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    # Through the storage, which writes its marker and .gitignore into an empty root only.
    with StorageRoot(str(root)).folder("", create=True) as folder:
        os.close(os.open(LOG, flags, 0o600, dir_fd=folder))
    return logging.FileHandler(root / LOG)


@contextmanager
def serve(serving: Serving, run: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Run *serving* in another thread for the block, by calling its *run* or *run_alone*.

    Raises CtxpipeError if the gateway does not start within START_SECONDS.
    """
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
    """Start *command* with *options* of Popen. Raises SettingsError if it cannot be started."""
    try:
        return subprocess.Popen(command, **options)  # noqa: S603  the user typed it
    except OSError as error:
        reason = error.strerror
        if isinstance(error, FileNotFoundError) and os.sep not in command[0]:
            reason = "no program on the PATH has this name"
        raise SettingsError(f"{command[0]} cannot be run: {reason}") from error


def _run(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run *command* at this terminal and return its exit status as a shell reports it.

    That is 128 plus the number of the signal, if a signal ended it. Signals to this process are
    passed on. Raises SettingsError if the command cannot be started.
    """
    child: subprocess.Popen[bytes] | None = None
    pending_signals: list[int] = []

    def pass_on(number: int) -> None:
        """Send the signal *number* to the agent, or keep it until the agent runs.

        SIGINT is skipped.
        """
        # The terminal itself sends Ctrl-C to the agent, which decides whether to end.
        if number == signal.SIGINT:
            return
        if child is None:
            pending_signals.append(number)
        else:
            child.send_signal(number)

    # The handlers come first, so that no signal is lost while the agent starts.
    with on_signals(pass_on):
        child = start(command, env=environment)
        for number in pending_signals:
            child.send_signal(number)
        status = _wait_for(child)
    if status < 0:
        return 128 - status
    return status


def next_signal(signals: SimpleQueue[int]) -> int:
    """Wait for a signal that `on_signals` puts into *signals*, and return its number."""
    while True:
        with suppress(Empty):
            return signals.get(timeout=WAIT_SECONDS)


def _wait_for(child: subprocess.Popen[bytes]) -> int:
    """Wait until *child* ends, and return its status. Signals are handled meanwhile."""
    while True:
        with suppress(subprocess.TimeoutExpired):
            return child.wait(WAIT_SECONDS)


@contextmanager
def on_signals(act: Callable[[int], object], numbers: Sequence[int] = SIGNALS) -> Iterator[None]:
    """Call *act* with each signal of *numbers* in the block, instead of ending the process."""
    previous_handlers = {}
    for number in numbers:
        previous_handlers[number] = signal.signal(number, lambda received, _: act(received))
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


# How each agent finds the gateway -----------------------------------------------------------------

COPILOT = "/copilot"
"""Path prefix for the provider that is configured in GitHub Copilot CLI."""
COPILOT_URL = "COPILOT_PROVIDER_BASE_URL"
COPILOT_TYPE = "COPILOT_PROVIDER_TYPE"
"""Environment variables of GitHub Copilot CLI: the address of a provider, and its type."""
CHATGPT_URL = "https://chatgpt.com/backend-api/codex"

_FOR_ALL = {
    "ANTHROPIC_BASE_URL": f"{{url}}{ANTHROPIC}",
    "OPENAI_BASE_URL": f"{{url}}{OPENAI}",
    "GOOGLE_GEMINI_BASE_URL": f"{{url}}{GEMINI}",
}
_GATEWAY = "run ctxpipe gateway --upstream URL, and write its address"


@dataclass(frozen=True, slots=True)
class Client:
    """Options that point one kind of agent at the gateway.

    *variables* are set in its environment, in addition to those that every agent gets; *arguments*
    are inserted before the user's; ``{url}`` in both is replaced by the gateway's address.
    *upstream* is the URL that the agent's own settings send requests to, "" if they name none.
    *advice* is printed for an agent that can only be configured in its own settings.
    *reader_option* is the option that takes servers of the Model Context Protocol.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    arguments: Sequence[str] = ()
    upstream: str = ""
    advice: str = ""
    reader_option: str = ""

    def environment(self, url: str) -> dict[str, str]:
        """Return the environment variables that point the agent at a gateway at *url*."""
        variables = {**_FOR_ALL, **self.variables}
        return {name: value.replace("{url}", url) for name, value in variables.items()}

    def command(self, command: Sequence[str], url: str, reader_url: str | None) -> list[str]:
        """Return the user's *command* with the options that point it at a gateway at *url*.

        *reader_url* is the address of the tools that read offloaded texts, None without them.
        """
        options = [word.replace("{url}", url) for word in self.arguments]
        if reader_url is not None and self.reader_option:
            # With alwaysLoad the agent waits for the tools before its first request. Tools that are
            # added later change the beginning of the prompt and invalidate its cache.
            server = {"type": "http", "url": reader_url, "alwaysLoad": True}
            # One word with "=": as two words the option would also take the words that follow.
            options.append(
                f"{self.reader_option}={json.dumps({'mcpServers': {'ctxpipe': server}})}"
            )
        return [command[0], *options, *command[1:]]

    def upstreams(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the URLs that the agent uses without a gateway, by the gateway's path prefixes."""
        anthropic_url = environment.get("ANTHROPIC_BASE_URL") or ANTHROPIC_URL
        upstreams = {
            ANTHROPIC: anthropic_url.rstrip("/").removesuffix("/v1"),  # some clients include it
            OPENAI: self.upstream or environment.get("OPENAI_BASE_URL") or OPENAI_URL,
            GEMINI: environment.get("GOOGLE_GEMINI_BASE_URL") or GEMINI_URL,
        }
        copilot_url = _copilot_upstream(environment)
        if copilot_url:
            upstreams[COPILOT] = copilot_url
        return upstreams

    def past_gateway(self, name: str) -> str:
        """Return the warning that the agent *name* bypasses the gateway, with advice."""
        return f"{name} bypasses the gateway: {self.advice or ADVICE}"


CLIENTS: Mapping[str, Client] = {
    "claude": Client(reader_option="--mcp-config"),
    "pi": Client(arguments=("--extension", str(Path(__file__).with_name("pi.js")))),
    "kimi": Client(advice=f"{_GATEWAY} as base_url of the provider into kimi's config.toml"),
    "copilot": Client(
        advice=f"what it asks of GitHub's models cannot be shaped; for a provider of your own set "
        f"{COPILOT_TYPE} and {COPILOT_URL}"
    ),
    "cline": Client(advice=f"{_GATEWAY} by cline auth --provider NAME --baseurl ADDRESS"),
    "cn": Client(advice=f"{_GATEWAY} as apiBase of the model into Continue's config.yaml"),
    "hermes": Client(advice=f"{_GATEWAY} as base_url of the model into Hermes' config.yaml"),
    "nanobot": Client(advice=f"{_GATEWAY} as apiBase of the provider into nanobot's config.json"),
}
"""The agents with special settings, by program name; codex is handled by `_codex`."""
ADVICE = (
    "have its settings take the URL from ANTHROPIC_BASE_URL or OPENAI_BASE_URL, or "
    f"{_GATEWAY} there"
)


def find_client(name: str, environment: Mapping[str, str]) -> Client:
    """Return how the agent *name* is started through the gateway: variables, arguments, advice.

    An unknown name gives the default settings. *environment* are the variables of this process.
    """
    client = _codex(environment) if name == "codex" else CLIENTS.get(name, Client())
    if not _copilot_upstream(environment):
        return client
    # Under every name, because a script may start Copilot. Its provider has a separate path prefix,
    # so the requests of other agents do not go there.
    variables = {**client.variables, COPILOT_URL: f"{{url}}{COPILOT}"}
    advice = "" if name == "copilot" else client.advice
    return replace(client, variables=variables, advice=advice)


def _copilot_upstream(environment: Mapping[str, str]) -> str:
    """Return the URL that GitHub Copilot CLI sends requests to, "" if it uses GitHub's models.

    If only the provider's type is set, it is the URL of that provider's public API.
    """
    defaults = {"anthropic": ANTHROPIC_URL, "openai": OPENAI_URL}
    provider = environment.get(COPILOT_TYPE, "").strip().lower()
    return environment.get(COPILOT_URL) or defaults.get(provider, "")


def _codex(environment: Mapping[str, str]) -> Client:
    """Return the settings for Codex, whose own configuration is read and never written.

    If the user has no plugins, an option keeps Codex from downloading some at its start: that
    request would bypass the gateway.
    """
    home = Path(environment.get("CODEX_HOME") or Path.home() / ".codex")
    config: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        config = tomllib.loads((home / "config.toml").read_text(encoding="utf-8"))
    setting = "openai_base_url"
    upstream = str(config.get("openai_base_url", ""))
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
