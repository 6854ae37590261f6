"""A pipeline written down in TOML, for the command line.

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
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ..edits.views import COMMON_READING_TOOLS
from ..errors import SettingsError
from ..pipeline import ContextPipeline
from ..placeholders import Preview
from ..prices import Prices
from ..stage import Stage
from ..stages.compact import Compact
from ..stages.gates import RatioGate, RentOrBuyGate
from ..stages.offload import BatchOffload, DirectOffload
from ..stages.truncate import SmartTruncate
from ..summarizers import ExtractiveSummarizer
from ..tokens import Budget
from .workbench import Workbench

__all__ = ["ConfiguredPolicy", "read_config"]

_GATES = {"RatioGate": RatioGate, "RentOrBuyGate": RentOrBuyGate}


@dataclass(frozen=True, slots=True)
class ConfiguredPolicy:
    """Makes the pipeline that the TOML file *text*, named *source*, describes."""

    source: str
    text: str
    prices: Prices

    def __call__(self, bench: Workbench) -> ContextPipeline:
        config = _parsed(self.text, self.source)
        stages = [self._stage(bench, table, number) for number, table in enumerate(config["stage"], 1)]
        return ContextPipeline(stages, budget=_built(Budget, config.get("budget", {}), f"{self.source}: [budget]"))

    def _stage(self, bench: Workbench, given: object, number: int) -> Stage:
        where = f"{self.source}: stage {number}"
        table = _table(given, where)
        name = table.pop("use", None)
        made = _STAGES.get(name) if isinstance(name, str) else None
        if made is None:
            raise SettingsError(f"{where}: use is {name!r}; there are {', '.join(_STAGES)}")
        if "preview" in table:
            table["preview"] = _built(Preview, table["preview"], f"{where}: preview")
        if "gate" in table:
            table["gate"] = self._gate(table["gate"], f"{where}: gate")
        for setting in ("inputs", "exempt_tools"):
            if setting in table:
                table[setting] = _names(table[setting], f"{where}: {setting}")
        kind, standard = made(bench)
        stage: Stage = _built(kind, {**standard, **table}, where)
        return stage

    def _gate(self, given: object, where: str) -> object:
        table = _table(given, where)
        name = table.pop("use", "RatioGate")
        if name not in _GATES:
            raise SettingsError(f"{where} is {name!r}; there are {', '.join(_GATES)}")
        standard = {"prices": self.prices} if name == "RentOrBuyGate" else {}
        return _built(_GATES[name], {**standard, **table}, where)


def read_config(path: str | os.PathLike[str], prices: Prices) -> ConfiguredPolicy:
    """The pipeline that the TOML file at *path* describes, tried once. Raises SettingsError naming file and setting."""
    source = os.fspath(path)
    try:
        with open(source, encoding="utf-8") as file:
            policy = ConfiguredPolicy(source, file.read(), prices)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{source} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    policy(Workbench())
    return policy


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        config = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{source} is no TOML: {error}") from error
    if unknown := sorted(set(config) - {"budget", "stage"}):
        raise SettingsError(f"{source}: {unknown[0]} means nothing here; there are [budget] and [[stage]]")
    if not isinstance(config.get("stage"), list):
        raise SettingsError(f"{source} names no [[stage]]")
    return config


def _table(given: object, where: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise SettingsError(f"{where} is {given!r}; give a table")
    return dict(given)


def _names(given: object, where: str) -> frozenset[str]:
    if not isinstance(given, list) or not all(isinstance(name, str) for name in given):
        raise SettingsError(f"{where} is {given!r}; give a list of names")
    return frozenset(given)


def _built(kind: Callable[..., Any], given: object, where: str) -> Any:
    table = _table(given, where)
    try:
        return kind(**table)
    except TypeError as error:
        known = [field.name for field in fields(kind)] if isinstance(kind, type) else []
        raise SettingsError(f"{where}: {error}; the settings are {', '.join(known)}") from error
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from error


_STAGES: Mapping[str, Callable[[Workbench], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "DirectOffload": lambda bench: (DirectOffload, {"storage": bench.storage, "reference": "absolute"}),
    "BatchOffload": lambda bench: (BatchOffload, {"storage": bench.storage, "reference": "absolute"}),
    "Compact": lambda bench: (
        Compact,
        {
            "summarize": ExtractiveSummarizer(),
            "archive": bench.storage,
            "files": bench.files,
            "reading_tools": COMMON_READING_TOOLS,
            "clock": bench.clock,
        },
    ),
    "SmartTruncate": lambda bench: (SmartTruncate, {"archive": bench.storage}),
}
"""What a stage is made of in the laboratory, where disk, files and clock are held in memory."""
