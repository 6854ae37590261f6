"""The settings of a gateway: its upstreams, its pipeline, and the folders of its files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import SettingsError
from ..providers.prices import FIVE_MINUTES
from ..session.breakpoints import MARKS
from ..settings import POSITIVE, SIZE, check_settings, excerpt
from ..wire.conversations import MAX_BYTES
from .guard import is_loopback
from .journals import check_journal
from .tokens import parse_tokens

ANTHROPIC = "/anthropic"
OPENAI = "/openai"
GEMINI = "/gemini"
"""Path prefixes at which `ctxpipe wrap` serves the APIs."""

KEEP_ALIVE_SECONDS = 75
"""Longer than the 60 seconds of nginx and of load balancers, so that they close idle connections.

If the gateway closed them, a request that is just being sent would be lost.
"""
BODY_SECONDS = 60.0
DRAIN_SECONDS = 25
"""Less than the 30 seconds after which Kubernetes kills a container that it stops."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The settings of a gateway.

    *upstreams* maps path prefixes ("" for every path) to the URLs that their requests are sent to.
    *address* is a host and a port; port 0 selects a free one.
    *root* is the folder of the gateway's files; with None nothing is written: no text is offloaded,
    and no conversation survives the gateway.
    *preset* is the name of a preset, or the path of a TOML file with a pipeline.
    *work_dir* is the folder of the agent's files, which are read again after a compaction; with
    None none is read.
    *pin* lists texts: user messages that contain one of them are kept word for word.
    *observation* is the text with which user messages begin that are results of tool calls.
    *window* is the model's context window in tokens; None uses the defaults of `Pipelines`.
    *summary_model* is the model that writes summaries. It is called at the upstream of the request
    that needs one, with the client's own credentials; with None no model is called.
    *cache_seconds* is the lifetime of the upstream's prompt cache; from an hour on every cache
    mark is for an hour.
    *tokens* are the tokens that clients may send, each in the form of a line in a token file;
    without them only this machine is served.
    *dry_run* sends every request unchanged and reports what would have been saved.
    *show_texts* shows the users' texts on the page.
    *max_bytes* limits the memory for conversations; several tokens share it.
    *journal* is the URL of a database in which several gateways share their journals; they may also
    share their address. With None the journals are in *root*, for one gateway only.
    *ca_file* is a file of certificates, in PEM format, that the upstreams and the proxy may have
    beside the usual ones. With *environment_certificates* the same is true of the file
    SSL_CERT_FILE and the folder SSL_CERT_DIR of the environment.
    *proxy* is the URL of an HTTP proxy through which the upstreams are reached.
    *timeout_keep_alive* is the number of seconds for which an idle connection stays open.
    *timeout_body* is the number of seconds after which a body that stops arriving is refused.
    *drain_seconds* is the time that open replies get to end when the gateway is stopped.
    *redact* lists regular expressions: what they find is hidden in everything that is written.
    *max_days* is the age in days from which on texts, archives and journals are deleted.
    *cache_breakpoints* is the number of cache breakpoints, at most four, that a request to a model
    with breakpoints has after shaping: Claude, and OpenAI's models from GPT-5.6 on. With None only
    those are added that cost nothing, to requests for the Messages API.
    *session_budget* is the number of dollars that a session may spend; with None any number.

    Raises SettingsError if a URL, the address, a token or a number is invalid.
    """

    upstreams: Mapping[str, str]
    root: Path | None = Path(".ctxpipe")
    address: tuple[str, int] = ("127.0.0.1", 0)
    preset: str = "coding"
    work_dir: Path | None = None
    pin: Sequence[str] = ()
    observation: str = ""
    window: int | None = None
    summary_model: str | None = None
    cache_seconds: float = FIVE_MINUTES
    tokens: Sequence[str] = field(default=(), repr=False)
    dry_run: bool = False
    show_texts: bool = False
    max_bytes: int = MAX_BYTES
    journal: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    environment_certificates: bool = False
    proxy: str | None = field(default=None, repr=False)
    timeout_keep_alive: int = KEEP_ALIVE_SECONDS
    timeout_body: float = BODY_SECONDS
    drain_seconds: int = DRAIN_SECONDS
    redact: Sequence[str] = ()
    max_days: float | None = None
    cache_breakpoints: int | None = None
    session_budget: float | None = None

    def __post_init__(self) -> None:
        for url in self.upstreams.values():
            check_upstream(url)
        if self.journal is not None:
            check_journal(self.journal)
        if self.proxy is not None:
            check_proxy(self.proxy)
        check_settings(
            self,
            timeout_keep_alive=SIZE,
            timeout_body=POSITIVE,
            drain_seconds=SIZE,
            max_days=POSITIVE.optional,
            cache_breakpoints=MARKS.optional,
            session_budget=POSITIVE.optional,
        )
        for pattern in self.redact:
            check_pattern(pattern)
        parse_tokens(self.tokens)
        host, _ = self.address
        if not self.tokens and not is_loopback(host):
            raise SettingsError(
                f"listening on {host} lets others in: give --token-file, or listen on 127.0.0.1"
            )


def check_upstream(url: str) -> None:
    """Raise SettingsError unless *url* is an HTTP address without query, fragment and user."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError(
            f"upstream is {excerpt(url)}; give a URL such as https://api.anthropic.com"
        )
    if parts.query or parts.fragment or parts.username is not None:
        raise SettingsError(
            "upstream has a query, a fragment or a user; give scheme, host and path only"
        )


def check_proxy(url: str) -> None:
    """Raise SettingsError unless *url* is the address of an HTTP proxy, perhaps with a user.

    The error does not quote the URL, which may have a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError("the proxy is no URL such as http://proxy.example:3128")


def check_pattern(pattern: str) -> None:
    """Raise SettingsError unless *pattern* is a regular expression that finds no empty text."""
    try:
        finds_nothing = re.compile(pattern).search("") is not None
    except re.error as error:
        raise SettingsError(f"redact is {excerpt(pattern)}, which is invalid: {error}") from error
    if finds_nothing:
        raise SettingsError(f"redact is {excerpt(pattern)}, which also finds an empty text")
