"""What a gateway is told: where requests go, what shapes them, where its files are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from ..errors import SettingsError
from ..providers.prices import FIVE_MINUTES
from ..settings import excerpt
from ..wire.conversations import MAX_BYTES
from .guard import is_loopback
from .journals import check_journal

ANTHROPIC = "/anthropic"
OPENAI = "/openai"
GEMINI = "/gemini"
"""The beginnings of the paths at which `ctxpipe wrap` serves the APIs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a gateway.

    *upstreams* maps the beginning of a path ("" for every path) to the URL that its requests go to.
    *address* is a host and a port, 0 for a free one. *root* is the folder of its files; None keeps
    none: then nothing is offloaded, and no conversation survives the gateway. *work_dir* is the
    folder of the agent's files, which are read again after a compaction; None reads none. *pin* are
    texts: messages in which the user says one stay word for word. *observation* is that of
    `format_of`. *journal* is the URL at which
    several gateways keep their journals in common, each on the same address if they like; None: in
    *root*, by one gateway alone. *tokens* are those that clients may show; without them only this
    machine is served. With *dry_run* every request is sent as it came, and what would have been
    saved is told. With *summary_model* summaries are written by that model, asked at the upstream
    of the request that needs one, with the client's own credentials; None asks no model.
    *cache_seconds* is how long the upstream's prompt cache keeps; from an hour on
    every cache mark is for an hour.

    Raises SettingsError for a URL or an address that cannot be meant.
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

    def __post_init__(self) -> None:
        for url in self.upstreams.values():
            check_upstream(url)
        if self.journal is not None:
            check_journal(self.journal)
        host, _ = self.address
        if not self.tokens and not is_loopback(host):
            raise SettingsError(
                f"listening on {host} lets others in: give --token-file, or listen on 127.0.0.1"
            )


def check_upstream(url: str) -> None:
    """Raise SettingsError unless *url* is one that requests can be sent to."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise SettingsError(
            f"upstream is {excerpt(url)}; give a URL such as https://api.anthropic.com"
        )
    if parts.query or parts.fragment or parts.username is not None:
        raise SettingsError(
            "upstream has a query, a fragment or a user; give scheme, host and path only"
        )


def read_tokens(path: Path) -> list[str]:
    """The tokens in the file at *path*, one a line.

    Raises SettingsError where there is none, where one is shorter than 16 characters, or where
    others than its owner may read the file.
    """
    try:
        mode = path.stat().st_mode
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise SettingsError(f"the token file {path} cannot be read: {error.strerror}") from error
    if mode & 0o077:
        raise SettingsError(f"the token file may be read by others: chmod 600 {path}")
    tokens = [line.strip() for line in lines if line.strip()]
    if not tokens or min(map(len, tokens)) < 16:
        raise SettingsError("the token file needs a token of 16 characters or more on each line")
    return tokens
