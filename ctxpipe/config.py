"""A pipeline written down in TOML, for the commands and the gateway.

[budget]
window = 200_000

[[stage]]
use = "DirectOffload"
min_chars = 8000
preview = { head = 400, tail = 200 }

[[stage]]
use = "BatchOffload"
gate = { use = "RentOrBuyGate", alpha = 2.0 }
keep_recent = 5
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from . import presets
from .edits.compact import Pin
from .errors import SettingsError
from .placeholders.placeholders import Preview
from .presets import Storage
from .providers.prices import Prices
from .settings import TOOL_NAMES
from .stages.collapse import Collapse
from .stages.compact import Breaker, Compact, Evidence, Restore
from .stages.gates import RatioGate, RentOrBuyGate
from .stages.media import MediaOffload
from .stages.offload import BatchOffload, DirectOffload
from .stages.protocol import Stage
from .stages.read_backs import TrimReadBacks
from .stages.truncate import SmartTruncate
from .storage.files import FileReader
from .storage.memory import MemoryStorage
from .summarizers import ExtractiveSummarizer, Summarizer
from .tokens import Budget

OLD_EXCHANGES: Mapping[str, presets.OldExchanges] = {
    "coding": "calls",
    "lean": "lines",
    "lean-memory": "more_lines",
}
"""What the presets for agents keep in sight of old exchanges, by their names for the commands."""

_STAGES = (
    DirectOffload,
    TrimReadBacks,
    MediaOffload,
    BatchOffload,
    Collapse,
    Compact,
    SmartTruncate,
)
_PARTS: Mapping[str, Sequence[type[Any]]] = {
    "preview": [Preview],
    "restore": [Restore],
    "evidence": [Evidence],
    "breaker": [Breaker],
    "gate": [RatioGate, RentOrBuyGate],
}
"""Settings of stages that are tables themselves, and what each may be, by default the first."""

_LENT = frozenset(
    {
        *("storage", "archive", "summarize", "clock", "prices", "retry", "folder"),
        *("files", "work_dir", "reading_tools", "deny"),
    }
)
"""Settings that no file can give: they are objects, and the caller has them."""


@dataclass(frozen=True, slots=True)
class Config:
    """The pipeline that *text* describes, the TOML of the file *source*."""

    source: str
    text: str

    def stages(
        self,
        storage: Storage,
        *,
        work_dir: str | os.PathLike[str] | None = None,
        files: FileReader | None = None,
        prices: Prices | None = None,
        summarize: Summarizer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> list[Stage]:
        """The stages, which write to *storage*; the rest is that of `presets.coding_agent`.

        Without *summarize* no model is asked for a summary.
        """
        lent: dict[str, object] = {
            **dict.fromkeys(("storage", "archive"), storage),
            "summarize": summarize or ExtractiveSummarizer(),
            "prices": prices or Prices.relative(),
            "clock": clock,
            "work_dir": work_dir if files is None else None,
            "files": files,
        }
        tables = enumerate(self._parse()["stage"], 1)
        return [self._stage(table, f"stage {number}", lent) for number, table in tables]

    def budget(self) -> Budget:
        """The budget."""
        budget: Budget = self._build(Budget, self._parse().get("budget", {}), "[budget]", {})
        return budget

    def _parse(self) -> dict[str, Any]:
        try:
            config = tomllib.loads(self.text)
        except (ValueError, RecursionError) as error:  # not only tomllib's own error
            raise SettingsError(f"{self.source} is not valid TOML: {error}") from error
        unknown = sorted(set(config) - {"budget", "stage"})
        if unknown:
            raise self._error(f"{unknown[0]} is unknown here; there are [budget] and [[stage]]")
        if not isinstance(config.get("stage"), list):
            raise SettingsError(f"{self.source} names no [[stage]]")
        return config

    def _stage(self, given: object, place: str, lent: Mapping[str, object]) -> Stage:
        kind, table = self._choose(_STAGES, given, place, f"{place}: use")
        if kind is Compact:
            table.setdefault("breaker", {})
            table.setdefault("restore", {})
            if lent["files"] is None and lent["work_dir"] is None:
                del table["restore"]
        for setting, parts in _PARTS.items():
            if setting not in table:
                continue
            where = f"{place}: {setting}"
            part, settings = self._choose(parts, table[setting], where, where, parts[0].__name__)
            table[setting] = self._build(part, settings, where, lent)
        if TOOL_NAMES.accepts(table.get("inputs")):
            table["inputs"] = frozenset(table["inputs"])
        stage: Stage = self._build(kind, table, place, lent)
        return stage

    def _choose(
        self,
        kinds: Sequence[type[Any]],
        given: object,
        place: str,
        what: str,
        default: str | None = None,
    ) -> tuple[type[Any], dict[str, Any]]:
        """The one of *kinds* that the table *given* uses, and the rest of the table."""
        table = self._table(given, place)
        name = table.pop("use", default)
        for kind in kinds:
            if kind.__name__ == name:
                return kind, table
        names = ", ".join(kind.__name__ for kind in kinds)
        raise self._error(f"{what} is {name!r}; there are {names}")

    def _table(self, given: object, place: str) -> dict[str, Any]:
        if not isinstance(given, Mapping):
            raise self._error(f"{place} is {given!r}; give a table")
        return dict(given)

    def _build(self, kind: type[Any], given: object, place: str, lent: Mapping[str, object]) -> Any:
        """*kind* made of the table *given*, and of what the caller has lent."""
        table = self._table(given, place)
        known = [each.name for each in fields(kind) if each.init]
        free = [name for name in known if name not in _LENT]
        for name in table:
            if name not in free:
                raise self._error(
                    f"{place}: {name} is unknown here; the settings are {', '.join(free)}"
                )
        own = {name: value for name, value in lent.items() if name in known}
        try:
            return kind(**own, **table)
        except (SettingsError, TypeError) as error:
            raise self._error(f"{place}: {error}") from error

    def _error(self, text: str) -> SettingsError:
        return SettingsError(f"{self.source}: {text}")


def read_config(path: str | os.PathLike[str]) -> Config:
    """The pipeline that the TOML file at *path* describes, tried once.

    Raises SettingsError, naming file, stage and setting.
    """
    source = os.fspath(path)
    try:
        with open(source, encoding="utf-8") as file:
            config = Config(source, file.read())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{source} cannot be read: {reason}") from error
    config.stages(MemoryStorage(), work_dir=".")
    config.budget()
    return config


def preset_stages(
    name: str,
    storage: Storage,
    *,
    work_dir: str | os.PathLike[str] | None = None,
    files: FileReader | None = None,
    prices: Prices | None = None,
    summarize: Summarizer | None = None,
    pin: Pin | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> list[Stage]:
    """The stages of the preset *name*, "chat" or one of `OLD_EXCHANGES`.

    Without *summarize* no model is asked for a summary.
    """
    summarize = summarize or ExtractiveSummarizer()
    if name == "chat":
        return presets.chat(storage, prices=prices, summarize=summarize, pin=pin, clock=clock)
    return presets.coding_agent(
        storage,
        work_dir=work_dir,
        old_exchanges=OLD_EXCHANGES[name],
        prices=prices,
        summarize=summarize,
        files=files,
        pin=pin,
        clock=clock,
    )
