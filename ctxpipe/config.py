"""A pipeline in a TOML file, for the commands and the gateway.

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
from .errors import SettingsError
from .placeholders.placeholders import Preview
from .presets import Storage
from .providers.prices import Prices
from .settings import TOOL_NAMES
from .stages.collapse.stage import Collapse
from .stages.compact.stage import Breaker, Compact, Evidence, Restore
from .stages.media.stage import MediaOffload
from .stages.offload.gates import RatioGate, RentOrBuyGate
from .stages.offload.stage import BatchOffload, DirectOffload
from .stages.protocol import Stage
from .stages.read_backs.stage import TrimReadBacks
from .stages.reading.pins import Pin
from .stages.truncate.stage import SmartTruncate
from .storage.files import FileReader
from .storage.memory import MemoryStorage
from .summarizers import ExtractiveSummarizer, Summarizer
from .tokens import Budget

OLD_EXCHANGES: Mapping[str, presets.OldExchanges] = {
    "coding": "calls",
    "lean": "lines",
}
"""Argument *old_exchanges* of `presets.coding_agent`, by the name of the preset in commands."""

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
"""Settings of stages that are tables themselves, and their classes; the first is the default."""

_CALLER_NAMES = frozenset(
    {
        *("storage", "archive", "summarize", "clock", "prices", "retry", "folder"),
        *("files", "work_dir", "reading_tools", "deny"),
    }
)
"""Settings that a file cannot contain, because their values are objects of the caller."""


@dataclass(frozen=True, slots=True)
class Config:
    """A pipeline described by *text*, the TOML of the file *source*."""

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
        """Create the stages; the parameters are those of `presets.coding_agent`.

        Without *summarize* no model is asked for a summary.
        """
        caller_values: dict[str, object] = {
            **dict.fromkeys(("storage", "archive"), storage),
            "summarize": summarize or ExtractiveSummarizer(),
            "prices": prices or Prices.relative(),
            "clock": clock,
            "work_dir": work_dir if files is None else None,
            "files": files,
        }
        tables = enumerate(self._parse()["stage"], 1)
        return [self._stage(table, f"stage {number}", caller_values) for number, table in tables]

    def budget(self) -> Budget:
        """Return the budget of the file, or the default budget."""
        budget: Budget = self._build(Budget, self._parse().get("budget", {}), "[budget]", {})
        return budget

    def _parse(self) -> dict[str, Any]:
        """Return the tables of the TOML text.

        Raises SettingsError if it is not valid TOML, has another table than ``budget`` and
        ``stage``, or has no list of stages.
        """
        try:
            config = tomllib.loads(self.text)
        except (ValueError, RecursionError) as error:  # not only tomllib's own error
            raise SettingsError(f"{self.source} is not valid TOML: {error}") from error
        unknown = sorted(set(config) - {"budget", "stage", "gateway"})
        if unknown:
            raise self._error(
                f"{unknown[0]} is unknown here; there are [budget] and [[stage]], and [gateway] "
                "with options of the gateway"
            )
        if not isinstance(config.get("stage"), list):
            raise SettingsError(f"{self.source} names no [[stage]]")
        return config

    def _stage(self, value: object, place: str, caller_values: Mapping[str, object]) -> Stage:
        """Return the stage that the table *value* describes; *place* names it in errors.

        A stage `Compact` gets a circuit breaker, and restores files if the caller gives some.
        Raises SettingsError for an unknown stage or setting.
        """
        kind, table = self._choose(_STAGES, value, place, f"{place}: use")
        if kind is Compact:
            table.setdefault("breaker", {})
            table.setdefault("restore", {})
            if caller_values["files"] is None and caller_values["work_dir"] is None:
                del table["restore"]
        for setting, parts in _PARTS.items():
            if setting not in table:
                continue
            where = f"{place}: {setting}"
            part, settings = self._choose(parts, table[setting], where, where, parts[0].__name__)
            table[setting] = self._build(part, settings, where, caller_values)
        if TOOL_NAMES.accepts(table.get("inputs")):
            table["inputs"] = frozenset(table["inputs"])
        stage: Stage = self._build(kind, table, place, caller_values)
        return stage

    def _choose(
        self,
        kinds: Sequence[type[Any]],
        value: object,
        place: str,
        what: str,
        default: str | None = None,
    ) -> tuple[type[Any], dict[str, Any]]:
        """Return the class among *kinds* that the table *value* names, and its other entries.

        The entry ``use`` has the name of the class; without it the name is *default*. Raises
        SettingsError, which names *what*, for another name.
        """
        table = self._table(value, place)
        name = table.pop("use", default)
        for kind in kinds:
            if kind.__name__ == name:
                return kind, table
        names = ", ".join(kind.__name__ for kind in kinds)
        raise self._error(f"{what} is {name!r}; there are {names}")

    def _table(self, value: object, place: str) -> dict[str, Any]:
        """Return a copy of the table *value*; raise SettingsError, with *place*, if it is none."""
        if not isinstance(value, Mapping):
            raise self._error(f"{place} is {value!r}; give a table")
        return dict(value)

    def _build(
        self, kind: type[Any], value: object, place: str, caller_values: Mapping[str, object]
    ) -> Any:
        """Create an object of *kind* from the table *value* and the values of the caller.

        Raises SettingsError, which names *place*, for an unknown or invalid setting.
        """
        table = self._table(value, place)
        field_names = [field.name for field in fields(kind) if field.init]
        own_names = [name for name in field_names if name not in _CALLER_NAMES]
        for name in table:
            if name not in own_names:
                raise self._error(
                    f"{place}: {name} is unknown here; the settings are {', '.join(own_names)}"
                )
        arguments = {name: item for name, item in caller_values.items() if name in field_names}
        try:
            return kind(**arguments, **table)
        except (SettingsError, TypeError) as error:
            raise self._error(f"{place}: {error}") from error

    def _error(self, text: str) -> SettingsError:
        return SettingsError(f"{self.source}: {text}")


def read_config(path: str | os.PathLike[str]) -> Config:
    """Read the pipeline that the TOML file at *path* describes, and create it once as a check.

    Raises SettingsError, which names the file, the stage and the setting.
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
    """Return the stages of the preset *name*, "chat" or one of `OLD_EXCHANGES`.

    Without *summarize* no model is asked for a summary. Raises SettingsError if there is no preset
    of this name.
    """
    summarize = summarize or ExtractiveSummarizer()
    if name == "chat":
        return presets.chat(storage, prices=prices, summarize=summarize, pin=pin, clock=clock)
    if name not in OLD_EXCHANGES:
        names = ", ".join((*OLD_EXCHANGES, "chat"))
        raise SettingsError(f"there is no preset {name!r}; the presets are {names}")
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
