"""Texts that an agent must still have in its context, and the file that lists them.

An *order* is such a text: a skill, a plan, a rule of the user, an error that is not resolved. A
file of orders has one JSON object a line:

    {"transcript": "session", "kind": "prohibition", "from_call": 0, "until_call": 40,
     "lines": ["Never push to main."]}
    {"transcript": "session", "kind": "running job used", "at_call": 12, "calls_since": 6,
     "lines": ["bx7f2q9"]}

*transcript* is the name of the recording, with or without its folder and suffix. Calls are counted
from 0: call N is the Nth reply of the model. The first form is for a text that applies to each call
from *from_call* to *until_call*. The second form is for a text that the agent needs at one call;
*calls_since* is the number of calls since the text came.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import NamedTuple

from .._text import short_repr
from .._values import JsonDict, JsonObject
from ..errors import TranscriptError
from ..testing.whereabouts import has_words
from .json_files import decode
from .records import Sums
from .transcripts import STDIN, read_bytes

GOVERNING_KINDS = (
    "skill text",
    "plan document",
    "to-do list",
    "prohibition",
    "correction",
    "other constraint",
    "error of a call tried again",
    "running job",
    "running job used",
)
"""Kinds of texts that say what an agent has to do, or what it waits for."""

ORDER_KINDS = (*GOVERNING_KINDS, "instruction file", "finding")
"""Kinds of orders, in the order in which tables list them."""

RANGE_KEYS = ("from_call", "until_call")
EVENT_KEYS = ("at_call", "calls_since")

SETTLED_CALLS = 4
"""Number of calls after which a text is looked for: before that, each policy still shows it."""

CALLS_BETWEEN_LOOKS = 10


@dataclass(frozen=True, slots=True, repr=False)
class Order:
    """A text that an agent needs: its *kind*, its *lines*, and the calls for which it applies.

    It came before call *from_call* and applies until call *until_call*. With *is_event* True it is
    needed at *until_call* only. *transcript* is the name of the recording.
    """

    transcript: str
    kind: str
    lines: tuple[str, ...]
    from_call: int
    until_call: int
    is_event: bool = False

    __repr__ = short_repr

    @property
    def calls_since(self) -> int:
        """The number of calls between the text and the call that needs it."""
        return self.until_call - self.from_call

    @property
    def looks(self) -> list[int]:
        """The calls at which the text is looked for.

        For an event it is the one call. Otherwise it is each tenth call of the conversation, from
        the fourth after the text came.
        """
        if self.is_event:
            return [self.until_call]
        calls = range(self.from_call + SETTLED_CALLS, self.until_call + 1)
        return [call for call in calls if call % CALLS_BETWEEN_LOOKS == 0]

    def as_json(self) -> JsonDict:
        """Return the order as an object of a file of orders."""
        if self.is_event:
            calls = {"at_call": self.until_call, "calls_since": self.calls_since}
        else:
            calls = {"from_call": self.from_call, "until_call": self.until_call}
        return {
            "transcript": self.transcript,
            "kind": self.kind,
            **calls,
            "lines": list(self.lines),
        }


def transcript_key(name: str) -> str:
    """Return the name by which orders refer to a recording: without folder and suffix."""
    name_of_file = PurePath(name).name
    for suffix in (".jsonl", ".json"):
        if name_of_file.lower().endswith(suffix):
            return name_of_file[: -len(suffix)]
    return name_of_file


def read_orders(path: str | os.PathLike[str]) -> list[Order]:
    """Return the orders in the file at *path*.

    Raises TranscriptError, with the line and the reason, if the file cannot be read or a line is
    not an order.
    """
    name = "standard input" if path == STDIN else os.fspath(path)
    text = decode(read_bytes(path), name)
    orders = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        place = f"{name}: line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else error
            raise TranscriptError(
                f"{place} is not JSON ({reason}); a file of orders has one JSON object a line"
            ) from error
        orders.append(_order(value, place))
    if not orders:
        raise TranscriptError(f"{name} holds no orders; write one JSON object a line")
    return orders


def _order(value: object, place: str) -> Order:
    """Return the order in *value*. Raises TranscriptError, naming the *place*, if it is not one."""
    if not isinstance(value, Mapping):
        raise TranscriptError(
            f"{place} is a {type(value).__name__}, not an object with the keys of an order; "
            "--write-orders writes a file of orders from recordings"
        )
    missing_keys = [key for key in ("transcript", "kind", "lines") if key not in value]
    if missing_keys:
        hint = ""
        if "role" in value or "type" in value:
            hint = "; this looks like a recording, give it as one of FILES"
        raise TranscriptError(f"{place} has no {' and no '.join(missing_keys)}{hint}")
    transcript = value["transcript"]
    if not isinstance(transcript, str) or not transcript:
        raise TranscriptError(
            f"{place}: transcript is {_name_of(transcript)}, not the name of a recording"
        )
    kind = value["kind"]
    if kind not in ORDER_KINDS:
        raise TranscriptError(
            f"{place}: there is no kind {_name_of(kind)}; the kinds are {', '.join(ORDER_KINDS)}"
        )
    lines = _lines(value["lines"], place)
    key = transcript_key(transcript)
    if "at_call" in value:
        extra_keys = [name for name in RANGE_KEYS if name in value]
        if extra_keys:
            raise TranscriptError(
                f"{place} has at_call and {extra_keys[0]}; "
                "give at_call, or from_call and until_call"
            )
        at_call = _number(value, "at_call", place)
        calls_since = _number(value, "calls_since", place) if "calls_since" in value else 0
        if calls_since > at_call:
            raise TranscriptError(
                f"{place}: calls_since is {calls_since}, but there are only {at_call} calls before "
                "at_call"
            )
        return Order(key, str(kind), lines, at_call - calls_since, at_call, is_event=True)
    missing_keys = [name for name in RANGE_KEYS if name not in value]
    if missing_keys:
        raise TranscriptError(
            f"{place} has no {' and no '.join(missing_keys)}; "
            "give from_call and until_call, or at_call"
        )
    from_call = _number(value, "from_call", place)
    until_call = _number(value, "until_call", place)
    if until_call < from_call:
        raise TranscriptError(f"{place}: until_call {until_call} is before from_call {from_call}")
    return Order(key, str(kind), lines, from_call, until_call)


def _name_of(value: object) -> str:
    """Return *value* for an error message: a short text in quotes, otherwise its type."""
    return repr(value[:60]) if isinstance(value, str) else type(value).__name__


def _lines(value: object, place: str) -> tuple[str, ...]:
    """Return the lines of an order. Raises TranscriptError if there is no line with a word."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TranscriptError(f"{place}: lines is {type(value).__name__}, not a list of texts")
    for line in value:
        if not isinstance(line, str):
            raise TranscriptError(f"{place}: lines holds {type(line).__name__}, not only texts")
    lines = tuple(line for line in value if has_words(line))
    if not lines:
        raise TranscriptError(f"{place}: lines holds no line with a word to look for")
    return lines


def _number(value: JsonObject, key: str, place: str) -> int:
    """Return the number of a call in *value*. Raises TranscriptError if it is not one."""
    number = value[key]
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise TranscriptError(f"{place}: {key} must be the number of a call, from 0")
    return number


def orders_by_transcript(orders: Iterable[Order]) -> dict[str, list[Order]]:
    """Return the *orders* of each recording, by the name that `transcript_key` returns."""
    groups: dict[str, list[Order]] = {}
    for order in orders:
        groups.setdefault(order.transcript, []).append(order)
    return groups


# Looks --------------------------------------------------------------------------------------------


class Look(NamedTuple):
    """A look for the *order* at recorded call *call*.

    *after_compaction* is True for a look after a compaction, False for one of the order's own
    calls. *in_context* and *in_file* are shares of the order's lines; the others are lost.
    """

    order: Order
    call: int
    after_compaction: bool
    in_context: float
    in_file: float


@dataclass(frozen=True, slots=True)
class Survival(Sums):
    """Sums over looks: their number, and the shares of lines in the context and in files."""

    looks: int = 0
    in_context: float = 0.0
    in_file: float = 0.0

    @property
    def context_share(self) -> float | None:
        """The mean share of lines in the context; None without a look."""
        return self.in_context / self.looks if self.looks else None

    @property
    def file_share(self) -> float | None:
        """The mean share of lines that are only in a file; None without a look."""
        return self.in_file / self.looks if self.looks else None

    @property
    def loss_share(self) -> float | None:
        """The mean share of lines that are neither in the context nor in a file."""
        if not self.looks:
            return None
        return max(0.0, 1 - (self.in_context + self.in_file) / self.looks)


def survival_by_kind(looks: Iterable[Look]) -> dict[str, Survival]:
    """Return the sums of *looks* for each kind that has a look, in the order of `ORDER_KINDS`."""
    sums: dict[str, Survival] = {}
    for look in looks:
        kind = look.order.kind
        survival = Survival(1, look.in_context, look.in_file)
        sums[kind] = sums.get(kind, Survival()) + survival
    return {kind: sums[kind] for kind in ORDER_KINDS if kind in sums}


@dataclass(frozen=True, slots=True)
class RulesShare:
    """The *share* in the context of the texts that govern the agent, and the *weakest* kind.

    The share is the mean of the shares of the `GOVERNING_KINDS`, so that a kind with few texts
    counts as much as one with many. *weakest_share* is that of the weakest kind.
    """

    share: float
    weakest: str
    weakest_share: float


def rules_share(looks: Iterable[Look]) -> RulesShare | None:
    """Return the share of the texts that govern the agent; None without a look for one.

    Only the looks at the calls of the orders count, not those after compactions.
    """
    shares = {}
    at_calls = [look for look in looks if not look.after_compaction]
    for kind, survival in survival_by_kind(at_calls).items():
        share = survival.context_share
        if kind in GOVERNING_KINDS and share is not None:
            shares[kind] = share
    if not shares:
        return None
    weakest = min(shares, key=lambda kind: shares[kind])
    return RulesShare(sum(shares.values()) / len(shares), weakest, shares[weakest])
