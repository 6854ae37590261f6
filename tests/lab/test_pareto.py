"""The chart of cost against sight."""

from __future__ import annotations

import itertools
import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ctxpipe.lab.pareto import COLOURS, Panel, Point, front, pareto_svg

SVG = "{http://www.w3.org/2000/svg}"

POINTS = [
    Point("lean", 0.5, 0.95),
    Point("coding", 0.65, 0.92),
    Point("none", 1.0, 1.0),
    Point("clear-old", 0.74, 0.98, is_ours=False),
    Point("<mask> & more", 1.35, 0.955, is_ours=False),
]
NUMBERS = st.floats(0.01, 3)
MANY = st.lists(
    st.builds(Point, st.text(max_size=20), NUMBERS, st.floats(0, 1), st.booleans()),
    min_size=1,
    max_size=12,
)


def drawn(points: list[Point] = POINTS, title: str = "46 sessions") -> ET.Element:
    return ET.fromstring(pareto_svg([Panel(title, points)]))  # noqa: S314  our own


def names(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def test_the_front_holds_what_no_other_beats_in_both() -> None:
    assert [point.name for point in front(POINTS)] == ["lean", "clear-old", "none"]


def test_every_policy_has_a_mark_and_its_name_ours_a_dot_and_others_a_square() -> None:
    root = drawn()

    for point in POINTS:
        assert names(root).count(point.name) == 1
    assert len(list(root.iter(f"{SVG}circle"))) == 3
    assert len([rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "other"]) == 2


def test_cheaper_is_left_and_more_in_sight_is_above() -> None:
    circles = list(drawn().iter(f"{SVG}circle"))

    left = [float(circle.get("cx", "")) for circle in circles]
    assert left == sorted(left)
    up = {circle[0].text: float(circle.get("cy", "")) for circle in circles}
    assert up["none: 1.000, 1.000"] < up["lean: 0.500, 0.950"] < up["coding: 0.650, 0.920"]


def test_each_panel_is_below_the_one_before() -> None:
    both = pareto_svg([Panel("first", POINTS), Panel("second", POINTS[:2])])
    root = ET.fromstring(both)  # noqa: S314

    shifts = [group.get("transform") for group in root.iter(f"{SVG}g")]
    assert shifts[0] == "translate(0 0)"
    assert len(set(shifts)) == 2
    assert {"first", "second"} <= set(names(root))


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["ink", "soft", "ours"])
def test_text_can_be_read_in_the_light_and_in_the_dark(scheme: str, name: str) -> None:
    colours = COLOURS[scheme]
    high, low = sorted((luminance(colours[name]), luminance(colours["paper"])), reverse=True)

    assert (high + 0.05) / (low + 0.05) >= 4.5  # WCAG AA
    assert colours[name] in pareto_svg([Panel("", POINTS)])


def test_the_dark_colours_hold_where_the_reader_prefers_them() -> None:
    style = drawn().find(f"{SVG}style")

    assert style is not None
    assert re.search(
        r"@media \(prefers-color-scheme: dark\) \{ :root \{ --ink: #e6", style.text or ""
    )


def test_labels_cover_neither_marks_nor_each_other_where_there_is_room() -> None:
    root = drawn()
    boxes = []
    for text in root.iter(f"{SVG}text"):
        if text.get("class") in {"ours", "other"}:
            left, base = float(text.get("x", "")), float(text.get("y", ""))
            boxes.append((left, base - 11, left + 6.6 * len(text.text or ""), base + 3))
    for circle in root.iter(f"{SVG}circle"):
        at, up = float(circle.get("cx", "")), float(circle.get("cy", ""))
        boxes.append((at - 5, up - 5, at + 5, up + 5))

    for one, other in itertools.combinations(boxes, 2):
        apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
        assert apart


@given(MANY)
@example([Point("all in sight", 1.0, 1.0, False)])
def test_whatever_is_drawn_is_valid_and_inside(points: list[Point]) -> None:
    clean = [point for point in points if point.name.isprintable()]
    if not clean:
        return
    root = drawn(clean)
    width, height = float(root.get("width", "")), float(root.get("height", ""))

    for circle in root.iter(f"{SVG}circle"):
        assert 0 <= float(circle.get("cx", "")) <= width
        assert 0 <= float(circle.get("cy", "")) <= height
