"""Items and parts of types that nobody knows, for histories of every form."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hypothesis import strategies as st

from ctxpipe.messages import pending_calls
from ctxpipe.session import Session
from ctxpipe.wire import Codec, Translation

MARKER = "moonstone"
"""What each unknown item and part has in it, and nothing else."""
WORDS = st.sampled_from(["", "full", "é😀", '{"a": 1}', "line\n" * 40])


@st.composite
def values(draw: Any) -> dict[str, Any]:
    """The fields of an unknown item or part, which no other has."""
    fields: dict[str, Any] = {MARKER: draw(st.integers(0, 10**9)), "note": draw(WORDS)}
    if draw(st.booleans()):
        fields["inner"] = [{"deep": draw(WORDS), "cache_control": {"type": "ephemeral"}}]
    return fields


@st.composite
def with_unknown(
    draw: Any,
    histories: st.SearchStrategy[list[Any]],
    make_item: Callable[[dict[str, Any]], Any] | None,
    add_part: Callable[[Any, dict[str, Any]], Any],
) -> list[Any]:
    """A history with unknown items anywhere, and unknown parts in what the user says.

    *make_item* makes an item of fields, *add_part* gives an item with one more part, or the item.
    """
    items: list[Any] = []
    for item in draw(histories):
        if make_item is not None:
            items += [make_item(draw(values())) for _ in range(draw(st.integers(0, 2)))]
        for _ in range(draw(st.integers(0, 1))):
            item = add_part(item, draw(values()))  # noqa: PLW2901
        items.append(item)
    if make_item is not None and draw(st.booleans()):
        items.append(make_item(draw(values())))
    return items


def unknown_in(items: Iterable[Any], parts_of: Callable[[Any], Sequence[Any]]) -> list[str]:
    """The unknown items and parts of *items* as JSON, in order.

    *parts_of* gives those of an item: the item itself, or unknown parts in it.
    """
    return [json.dumps(part, default=repr) for item in items for part in parts_of(item)]


async def check_unknown(
    codec: Codec,
    session: Session,
    items: list[Any],
    forced: set[int],
    parts_of: Callable[[Any], Sequence[Any]],
    problems: Callable[[list[Any]], Sequence[str]],
    is_known: Callable[[Any], bool],
) -> None:
    """A request at each place where one may end; those *forced* compact.

    Every unknown item and part is in every request, in its order, and the other items of the
    request, which *is_known* tells, break no rule of the API.
    """
    translation = Translation(codec)
    for end in range(1, len(items) + 1):
        given = copy.deepcopy(items[:end])
        known = [item for item in given if is_known(item)]
        units = translation.read(given)
        if pending_calls(units.messages) or problems(known) or not units.messages:
            continue
        if units.messages[-1]["role"] == "assistant":
            continue  # no request ends so
        result = await session.run(units.messages, system=units.system, force=end in forced)
        sent = translation.items(units, result.messages)

        assert unknown_in(sent, parts_of) == unknown_in(given, parts_of)
        assert not result.repaired
        assert problems([item for item in sent if is_known(item)]) == []
