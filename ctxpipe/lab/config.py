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
from ..markers.placeholders import Preview
from ..pipeline import ContextPipeline
from ..prices import Prices
from ..settings import Setting
from ..stage import Stage
from ..stages.collapse import Collapse
from ..stages.compact import Breaker, Compact, Evidence, Restore
from ..stages.gates import RatioGate, RentOrBuyGate
from ..stages.offload import BatchOffload, DirectOffload
from ..stages.read_backs import TrimReadBacks
from ..stages.truncate import SmartTruncate
from ..summarizers import ExtractiveSummarizer
from ..tokens import Budget
from .workbench import Workbench

__all__ = ["ConfiguredPolicy", "read_config"]

_PARTS: Mapping[str, type[Any]] = {
    "preview": Preview,
    "restore": Restore,
    "evidence": Evidence,
    "breaker": Breaker,
}
"""Settings of stages that are tables themselves."""

_GATES: Mapping[str, type[Any]] = {"RatioGate": RatioGate, "RentOrBuyGate": RentOrBuyGate}


@dataclass(frozen=True, slots=True)
class ConfiguredPolicy:
    """Makes the pipeline that *text* describes, the TOML of the file *source*."""

    source: str
    text: str
    prices: Prices

    def __call__(self, bench: Workbench) -> ContextPipeline:
        config = _parse(self.text, self.source)
        tables = enumerate(config["stage"], 1)
        stages = [self._stage(bench, table, number) for number, table in tables]
        place = self._place("[budget]", r"\[\s*budget\s*\]|budget\b")
        budget = _build(Budget, config.get("budget", {}), place)
        return ContextPipeline(stages, budget=budget)

    def _stage(self, bench: Workbench, given: object, number: int) -> Stage:
        place = self._place(f"stage {number}", r"\[\[\s*stage\s*\]\]|stage\b", number)
        table = _table(given, str(place))
        name = table.pop("use", None)
        factory = None
        if isinstance(name, str):
            factory = _STAGES.get(name)
        if factory is None:
            raise SettingsError(f"{place.of('use')} is {name!r}; there are {', '.join(_STAGES)}")
        for setting, kind in _PARTS.items():
            if setting in table:
                own = _own_settings(setting, bench)
                table[setting] = _build(kind, table[setting], place.of(setting), own)
        if "gate" in table:
            table["gate"] = self._gate(table["gate"], place.of("gate"))
        if "inputs" in table:
            table["inputs"] = _names(table["inputs"], str(place.of("inputs")))
        kind, lent = factory(bench)
        if kind is Collapse:
            lent["prices"] = self.prices
        stage: Stage = _build(kind, table, place, lent)
        return stage

    def _gate(self, given: object, place: _Place) -> object:
        table = _table(given, str(place))
        name = table.pop("use", "RatioGate")
        if not isinstance(name, str) or name not in _GATES:
            raise SettingsError(f"{place} is {name!r}; there are {', '.join(_GATES)}")
        own: dict[str, object] = {}
        if name == "RentOrBuyGate":
            own["prices"] = self.prices
        return _build(_GATES[name], table, place, own)

    def _place(self, what: str, header: str, number: int = 1) -> _Place:
        """Where the table *what* begins: the line of the *number*-th match of *header*."""
        starts = []
        for line_number, line in enumerate(self.text.splitlines(), 1):
            if re.match(rf"\s*(?:{header})", line):
                starts.append(line_number)
        start = 1
        if starts:
            start = starts[min(number, len(starts)) - 1]
        return _Place(self.source, self.text, start, what)


@dataclass(frozen=True, slots=True)
class _Place:
    """A table of the file, for the beginning of an error: the file, the *line* and *what* it is."""

    source: str
    text: str
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.source}, line {self.line}: {self.what}"

    def of(self, setting: str) -> _Place:
        """The place of a setting of the table, or of the table where it is not found."""
        what = f"{self.what}: {setting}"
        lines = self.text.splitlines()
        for number in range(self.line, len(lines)):
            if lines[number].lstrip().startswith("["):
                break
            if re.match(rf"\s*[\"']?{re.escape(setting)}[\"']?\s*[=.]", lines[number]):
                return replace(self, line=number + 1, what=what)
        return replace(self, what=what)


def read_config(path: str | os.PathLike[str], prices: Prices) -> ConfiguredPolicy:
    """The pipeline that the TOML file at *path* describes, tried once.

    Raises SettingsError naming file and setting.
    """
    source = os.fspath(path)
    try:
        with open(source, encoding="utf-8") as file:
            policy = ConfiguredPolicy(source, file.read(), prices)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise SettingsError(f"{source} cannot be read: {reason}") from error
    policy(Workbench())
    return policy


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        config = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not only tomllib's own error
        raise SettingsError(f"{source} is not valid TOML: {error}") from error
    unknown = sorted(set(config) - {"budget", "stage"})
    if unknown:
        raise SettingsError(
            f"{source}: {unknown[0]} is unknown here; there are [budget] and [[stage]]"
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


def _build(
    kind: type[Any],
    given: object,
    place: _Place,
    own: Mapping[str, object] | None = None,
) -> Any:
    """*kind* made of the table *given*, which may override what the laboratory brings: *own*."""
    table = _table(given, str(place))
    known = {}
    for setting in fields(kind):
        if setting.init and setting.name not in _OURS:
            known[setting.name] = setting
    for name, value in table.items():
        if name not in known:
            raise SettingsError(
                f"{place.of(name)} is unknown here; the settings are {', '.join(known)}"
            )
        expectation = _expectation(value, _default(known[name]))
        if expectation:
            raise SettingsError(f"{place.of(name)} is {value!r}; give {expectation}")
    try:
        return kind(**{**(own or {}), **table})
    except (SettingsError, TypeError) as error:
        for name in table:
            if name in str(error):
                place = place.of(name)
                break
        raise SettingsError(f"{place}: {error}") from error


def _expectation(given: object, default: object) -> str:
    """What must be given in place of *given*, "" when it is valid.

    For most settings the stage itself decides that.
    """
    if isinstance(default, bool):
        return "" if isinstance(given, bool) else "true or false"
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if isinstance(default, int | float) and not is_number:
        return "a number"
    return ""


def _default(setting: Field[Any]) -> object:
    if isinstance(setting.default_factory, Setting):
        return setting.default_factory()
    return setting.default


_OURS = frozenset(
    {
        *("storage", "archive", "summarize", "clock", "prices", "retry", "folder", "pin"),
        *("files", "work_dir", "reading_tools", "deny"),
    }
)
"""Settings that no file can give: they are objects, and the laboratory brings its own."""


def _own_settings(part: str, bench: Workbench) -> dict[str, Any]:
    """What the laboratory brings to one of `_PARTS`."""
    if part == "restore":
        return {"files": bench.files}
    if part == "breaker":
        return {"clock": bench.clock}
    return {}


def _offload_storage(bench: Workbench) -> dict[str, Any]:
    return {"storage": bench.storage}


def _compact_settings(bench: Workbench) -> dict[str, Any]:
    return {
        "summarize": ExtractiveSummarizer(),
        "archive": bench.storage,
        "restore": Restore(files=bench.files),
        "breaker": Breaker(clock=bench.clock),
    }


_STAGES: Mapping[str, Callable[[Workbench], tuple[type[Any], dict[str, Any]]]] = {
    "DirectOffload": lambda bench: (DirectOffload, _offload_storage(bench)),
    "TrimReadBacks": lambda bench: (TrimReadBacks, _offload_storage(bench)),
    "BatchOffload": lambda bench: (BatchOffload, _offload_storage(bench)),
    "Collapse": lambda bench: (Collapse, _offload_storage(bench)),
    "Compact": lambda bench: (Compact, _compact_settings(bench)),
    "SmartTruncate": lambda bench: (SmartTruncate, {"archive": bench.storage}),
}
"""Each stage with its settings in the laboratory, whose disk, files and clock are in memory."""
