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
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, replace
from typing import Any

from ..errors import SettingsError
from ..pipeline import ContextPipeline
from ..placeholders import Preview
from ..prices import Prices
from ..settings import Setting
from ..stage import Stage
from ..stages.compact import Compact, Restore
from ..stages.gates import RatioGate, RentOrBuyGate
from ..stages.offload import BatchOffload, DirectOffload
from ..stages.truncate import SmartTruncate
from ..summarizers import ExtractiveSummarizer
from ..tokens import Budget
from .workbench import Workbench

__all__ = ["ConfiguredPolicy", "read_config"]

_GATES: Mapping[str, type[Any]] = {"RatioGate": RatioGate, "RentOrBuyGate": RentOrBuyGate}


@dataclass(frozen=True, slots=True)
class ConfiguredPolicy:
    """Makes the pipeline that the TOML file *text*, named *source*, describes."""

    source: str
    text: str
    prices: Prices

    def __call__(self, bench: Workbench) -> ContextPipeline:
        config = _parsed(self.text, self.source)
        stages = [
            self._stage(bench, table, number) for number, table in enumerate(config["stage"], 1)
        ]
        budget = _built(
            Budget, config.get("budget", {}), self._place("[budget]", r"\[\s*budget\s*\]|budget\b")
        )
        return ContextPipeline(stages, budget=budget)

    def _stage(self, bench: Workbench, given: object, number: int) -> Stage:
        place = self._place(f"stage {number}", r"\[\[\s*stage\s*\]\]|stage\b", number)
        table = _table(given, str(place))
        name = table.pop("use", None)
        made = _STAGES.get(name) if isinstance(name, str) else None
        if made is None:
            raise SettingsError(f"{place.of('use')} is {name!r}; there are {', '.join(_STAGES)}")
        if "preview" in table:
            table["preview"] = _built(Preview, table["preview"], place.of("preview"))
        if "gate" in table:
            table["gate"] = self._gate(table["gate"], place.of("gate"))
        for setting in ("inputs", "exempt_tools"):
            if setting in table:
                table[setting] = _names(table[setting], str(place.of(setting)))
        if "restore" in table:
            table["restore"] = _built(
                Restore, table["restore"], place.of("restore"), {"files": bench.files}
            )
        kind, standard = made(bench)
        stage: Stage = _built(kind, table, place, standard)
        return stage

    def _gate(self, given: object, place: _Place) -> object:
        table = _table(given, str(place))
        name = table.pop("use", "RatioGate")
        if not isinstance(name, str) or name not in _GATES:
            raise SettingsError(f"{place} is {name!r}; there are {', '.join(_GATES)}")
        return _built(
            _GATES[name], table, place, {"prices": self.prices} if name == "RentOrBuyGate" else {}
        )

    def _place(self, what: str, header: str, number: int = 1) -> _Place:
        """Where the table *what* begins: the line of the *number*-th match of *header*."""
        starts = [
            n
            for n, line in enumerate(self.text.splitlines(), 1)
            if re.match(rf"\s*(?:{header})", line)
        ]
        return _Place(
            self.source, self.text, starts[min(number, len(starts)) - 1] if starts else 1, what
        )


@dataclass(frozen=True, slots=True)
class _Place:
    """A table of the file, for an error's first words: the file, the *line* and *what* it is."""

    source: str
    text: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}: {self.what}"

    def of(self, setting: str) -> _Place:
        """The place of a setting of the table, or, where it is not found, of the table."""
        lines = self.text.splitlines()
        for number in range(self.line, len(lines)):
            if lines[number].lstrip().startswith("["):
                break
            if re.match(rf"\s*[\"']?{re.escape(setting)}[\"']?\s*[=.]", lines[number]):
                return replace(self, line=number + 1, what=f"{self.what}: {setting}")
        return replace(self, what=f"{self.what}: {setting}")


def read_config(path: str | os.PathLike[str], prices: Prices) -> ConfiguredPolicy:
    """The pipeline that the TOML file at *path* describes, tried once.

    Raises SettingsError naming file and setting.
    """
    source = os.fspath(path)
    try:
        with open(source, encoding="utf-8") as file:
            policy = ConfiguredPolicy(source, file.read(), prices)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{source} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    policy(Workbench())
    return policy


def _parsed(text: str, source: str) -> dict[str, Any]:
    try:
        config = tomllib.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as error:  # tomllib has one of its own for most, not all, that is wrong
        raise SettingsError(f"{source} is no TOML: {error}") from error
    if unknown := sorted(set(config) - {"budget", "stage"}):
        raise SettingsError(
            f"{source}: {unknown[0]} means nothing here; there are [budget] and [[stage]]"
        )
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


def _built(
    kind: type[Any], given: object, place: _Place, standard: Mapping[str, object] | None = None
) -> Any:
    """*kind* made of the table *given*.

    What the laboratory brings itself (*standard*) may be given too.
    """
    table = _table(given, str(place))
    known = {
        setting.name: setting
        for setting in fields(kind)
        if setting.init and setting.name not in _OURS
    }
    for name, value in table.items():
        if name not in known:
            raise SettingsError(
                f"{place.of(name)} means nothing here; the settings are {', '.join(known)}"
            )
        if wanted := _wanted(value, _default(known[name])):
            raise SettingsError(f"{place.of(name)} is {value!r}; give {wanted}")
    try:
        return kind(**{**(standard or {}), **table})
    except (SettingsError, TypeError) as error:
        named = next((name for name in table if name in str(error)), None)
        raise SettingsError(f"{place.of(named) if named else place}: {error}") from error


def _wanted(given: object, default: object) -> str:
    """What must stand in the place of *given*, "" when it may stay: of most settings the stage
    itself decides that.
    """
    if isinstance(default, bool):
        return "" if isinstance(given, bool) else "true or false"
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return "a number" if isinstance(default, int | float) and not is_number else ""


def _default(setting: Field[Any]) -> object:
    return (
        setting.default_factory()
        if isinstance(setting.default_factory, Setting)
        else setting.default
    )


_OURS = frozenset(
    {
        *("storage", "archive", "summarize", "clock", "prices", "retry", "folder", "pin"),
        *("files", "work_dir", "reading_tools", "deny"),
    }
)
"""Settings that no file can tell: they are objects, in the laboratory its own."""

_STAGES: Mapping[str, Callable[[Workbench], tuple[type[Any], dict[str, Any]]]] = {
    "DirectOffload": lambda bench: (
        DirectOffload,
        {"storage": bench.storage, "reference": "absolute"},
    ),
    "BatchOffload": lambda bench: (
        BatchOffload,
        {"storage": bench.storage, "reference": "absolute"},
    ),
    "Compact": lambda bench: (
        Compact,
        {
            "summarize": ExtractiveSummarizer(),
            "archive": bench.storage,
            "restore": Restore(files=bench.files),
            "clock": bench.clock,
        },
    ),
    "SmartTruncate": lambda bench: (SmartTruncate, {"archive": bench.storage}),
}
"""What a stage is made of in the laboratory, where disk, files and clock are held in memory."""
