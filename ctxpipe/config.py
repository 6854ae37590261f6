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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from .errors import SettingsError
from .placeholders.placeholders import Preview
from .presets import Storage
from .providers.prices import Prices
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
from .summarizers import ExtractiveSummarizer
from .tokens import Budget

__all__ = ["Config", "read_config"]

_STAGES: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        DirectOffload,
        TrimReadBacks,
        MediaOffload,
        BatchOffload,
        Collapse,
        Compact,
        SmartTruncate,
    )
}
_PARTS: Mapping[str, type[Any]] = {
    "preview": Preview,
    "restore": Restore,
    "evidence": Evidence,
    "breaker": Breaker,
}
"""Settings of stages that are tables themselves."""

_GATES: Mapping[str, type[Any]] = {"RatioGate": RatioGate, "RentOrBuyGate": RentOrBuyGate}

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
        clock: Callable[[], float] = time.monotonic,
    ) -> list[Stage]:
        """The stages, which write to *storage*; the rest is that of `presets.coding_agent`."""
        lent: dict[str, object] = {
            **dict.fromkeys(("storage", "archive"), storage),
            "summarize": ExtractiveSummarizer(),
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
        for setting, part in _PARTS.items():
            if setting in table:
                table[setting] = self._build(part, table[setting], f"{place}: {setting}", lent)
        if "gate" in table:
            where = f"{place}: gate"
            gate, settings = self._choose(_GATES, table["gate"], where, where, "RatioGate")
            table["gate"] = self._build(gate, settings, where, lent)
        if "inputs" in table:
            names = table["inputs"]
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise self._error(f"{place}: inputs is {names!r}; give a list of names")
            table["inputs"] = frozenset(names)
        stage: Stage = self._build(kind, table, place, lent)
        return stage

    def _choose(
        self,
        kinds: Mapping[str, type[Any]],
        given: object,
        place: str,
        what: str,
        default: str = "",
    ) -> tuple[type[Any], dict[str, Any]]:
        """The one of *kinds* that the table *given* uses, and the rest of the table."""
        table = self._table(given, place)
        name = table.pop("use", default or None)
        kind = kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            raise self._error(f"{what} is {name!r}; there are {', '.join(kinds)}")
        return kind, table

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
