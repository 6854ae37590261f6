"""The rules by which providers cache prompts, as a table with the source of each rule."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias

from ..errors import SettingsError
from ..settings import excerpt

Written: TypeAlias = Literal["marks", "everywhere", "head"]
"""The places at which a prefix is cached: at cache marks, at each block, or behind the head."""


@dataclass(frozen=True, slots=True)
class CacheRules:
    """The rules of the prompt cache called *name*.

    Where entries are written and found:

    - *written*: "marks": at the cache marks of a request; "everywhere": each block ends an entry;
      "head": only the system prompt and the tools are cached, by an explicit call.
    - *has_own_mark*: the provider itself sets a mark at the end of each request.
    - *needs_mark*: a request without a mark reads nothing.
    - *lookback_blocks*: number of blocks, its own included, that a mark searches for an entry. With
      0 the whole prompt is searched, and at most *max_candidates* entries in it (0: all).
    - *max_marks*: number of marks that a request may have, the provider's own included; 0 if the
      API has no marks.
    - *keeps_common_prefix*: the beginning that two requests share becomes an entry, too.

    How much is cached, and how long:

    - *min_tokens*: tokens of the shortest cached prefix; *min_tokens_by_model* has exceptions, by
      the beginning of a model's name.
    - *step_tokens*: cached tokens are a multiple of it; 0 if they are exact.
    - *lifetime_seconds*: lifetime of an entry after its last use, or after it was written if it is
      not *is_renewed*. *long_lifetime_seconds* is the longer lifetime that a request can ask for; 0
      if there is none.
    - *hit_rate*: share of the possible hits that happen.

    Prices, as multiples of the price of an input token: *write*, *long_write* for the long
    lifetime, *read*, and *storage_per_hour* of a stored token.

    *sources* has the address of the page that states each rule, or "" for an assumption.
    """

    name: str
    written: Written
    lifetime_seconds: float
    write: float
    read: float
    min_tokens: int
    has_own_mark: bool = False
    needs_mark: bool = True
    lookback_blocks: int = 0
    max_candidates: int = 0
    max_marks: int = 0
    keeps_common_prefix: bool = False
    min_tokens_by_model: Mapping[str, int] = field(default_factory=dict)
    step_tokens: int = 0
    is_renewed: bool = True
    long_lifetime_seconds: float = 0.0
    long_write: float = 0.0
    hit_rate: float = 1.0
    storage_per_hour: float = 0.0
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def has_marks(self) -> bool:
        """True if a caller can place cache marks in a request."""
        return self.written == "marks" and self.max_marks > 0

    @property
    def reports_writes(self) -> bool:
        """True if written tokens have a price of their own, so that the usage counts them."""
        return self.write != 1.0

    def min_tokens_of(self, model: str | None) -> int:
        """Return the tokens of the shortest prompt that *model* caches."""
        beginning = _longest_beginning(self.min_tokens_by_model, _plain_name(model))
        return self.min_tokens_by_model.get(beginning, self.min_tokens)

    def with_hit_rate(self, hit_rate: float | None) -> CacheRules:
        """Return these rules with another *hit_rate*; with None these rules themselves.

        Raises SettingsError if it is not between 0 and 1.
        """
        if hit_rate is None:
            return self
        if not 0 <= hit_rate <= 1:
            raise SettingsError(
                f"the hit rate is {excerpt(hit_rate)}; give a share between 0 and 1, such as 0.9"
            )
        other_sources = {rule: at for rule, at in self.sources.items() if rule != "hit_rate"}
        return replace(self, hit_rate=hit_rate, sources=other_sources)

    def round_down(self, tokens: float) -> float:
        """Return the part of *tokens* that can be read, as `step_tokens` says."""
        if not self.step_tokens:
            return tokens
        return tokens - tokens % self.step_tokens


# The table ----------------------------------------------------------------------------------------

_TABLE: Mapping[str, Any] = tomllib.loads(
    (files(__package__) / "cache_rules.toml").read_text("utf-8")
)


def _read(name: str, section: Mapping[str, Any]) -> CacheRules:
    """Return the rules in one *section* of the table."""
    values = {}
    sources = {}
    for rule, (value, source) in section.items():
        values[rule] = value
        sources[rule] = _TABLE["sources"][source]
    return CacheRules(name=name, sources=sources, **values)


def _read_table() -> dict[str, CacheRules]:
    rules = {}
    for name, section in _TABLE.items():
        if name != "sources":
            rules[name] = _read(
                name, {key: rule for key, rule in section.items() if key != "models"}
            )
    return rules


CACHE_RULES: Mapping[str, CacheRules] = _read_table()
"""The rules of each cache, by its name."""

ANTHROPIC = CACHE_RULES["anthropic"]
OPENAI = CACHE_RULES["openai"]
OPENAI_BEFORE = CACHE_RULES["openai-before-5-6"]

LARGEST_MINIMUM = max(ANTHROPIC.min_tokens_by_model.values())
"""Tokens from which on every known model of Anthropic caches a prompt."""

_BREAKPOINTS_SINCE = (5, 6)
"""First version of OpenAI's models with breakpoints."""
_GPT_VERSION = re.compile(r"gpt-(\d+)(?:[.-](\d{1,2})(?!\d))?")


def cache_rules(name: str) -> CacheRules:
    """Return the rules of the cache called *name*. Raises SettingsError if there are none."""
    if name not in CACHE_RULES:
        raise SettingsError(f"no cache is called {excerpt(name)}; give {', '.join(CACHE_RULES)}")
    return CACHE_RULES[name]


@lru_cache(maxsize=1024)
def rules_of_model(model: str | None) -> CacheRules | None:
    """Return the rules for *model*, found by the beginning of its name; None if it is unknown."""
    name = _plain_name(model)
    version = _GPT_VERSION.match(name)
    if version is not None:
        numbers = (int(version[1]), int(version[2] or 0))
        return OPENAI if numbers >= _BREAKPOINTS_SINCE else OPENAI_BEFORE
    section_by_beginning = {
        beginning: section
        for section, rules in _TABLE.items()
        if section != "sources"
        for beginning in rules["models"]
    }
    beginning = _longest_beginning(section_by_beginning, name)
    if not beginning:
        return None
    return CACHE_RULES[section_by_beginning[beginning]]


def assumptions_in(rules: CacheRules) -> list[str]:
    """Return the names of the *rules* that no published page confirms."""
    return [rule.name for rule in fields(rules) if rules.sources.get(rule.name) == ""]


def _plain_name(model: str | None) -> str:
    """Return the name of *model* without the provider before it."""
    return (model or "").rpartition("/")[2]


def _longest_beginning(beginnings: Sequence[str] | Mapping[str, object], name: str) -> str:
    """Return the longest of *beginnings* with which *name* begins, or "" if there is none."""
    matches = [beginning for beginning in beginnings if name.startswith(beginning)]
    return max(matches, key=len, default="")
