"""The page's charts: specifications of Vega-Lite, and the library that draws them.

Colours are names of the page's style sheet, so a chart is light or dark as its reader is.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle, islice
from typing import TypeAlias

from .report import KINDS, Figures, RecallPoint, Report

__all__ = ["charts", "library"]

Spec: TypeAlias = Mapping[str, object]

VEGA_LITE = "6.4"
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
STEPS = 6
_CONFIG: Spec = {
    "aria": False,  # a chart is one image to a screen reader; the table below it has every figure
    "font": "system-ui, sans-serif",
    "axis": {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "tickColor": "var(--line)",
        "domainColor": "var(--line)",
        "gridColor": "var(--line)",
        "titleFontWeight": "normal",
        "labelFontSize": 12,
        "titleFontSize": 12,
    },
    "legend": {
        "labelColor": "var(--ink)",
        "titleColor": "var(--soft)",
        "labelFontSize": 12,
        "symbolSize": 90,
    },
    "mark": {"invalid": "show"},  # every number is one: no need to look at each
    "view": {"stroke": None},
}


@functools.cache
def library() -> str:
    """The whole plotting library, as a script that needs no network.

    Takes a second or two, once in a process.
    """
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)


def charts(reports: Sequence[Report], policies: Sequence[Figures] = ()) -> dict[str, object]:
    """The charts for *reports* by name, compiled; the page's script gives them their data.

    Beside those of one conversation there is one of several *policies*, where these are given.
    """
    import vl_convert

    specs: dict[str, Spec] = {}
    if any(run.turns for report in reports for run in report.runs):
        dollars = all(report.unit == "dollars" for report in reports)
        specs["tokens"] = _tokens(_stages(reports))
        specs["cost"] = _cost(dollars=dollars)
    points = [point for report in reports for point in report.recall]
    if points:
        specs["recall"] = _recall(points)
    if policies:
        specs["policies"] = _policies()
    compiled: dict[str, object] = {}
    for name, spec in specs.items():
        compiled[name] = vl_convert.vegalite_to_vega(_encodable(spec), vl_version=VEGA_LITE)
    return compiled


def _encodable(spec: Spec) -> str:
    """*spec* as JSON; what cannot be encoded becomes a question mark, as on the page."""
    return json.dumps(spec, ensure_ascii=False).encode("utf-8", "replace").decode()


def _chart(
    height: int,
    layers: Sequence[Spec],
    params: Sequence[str] = (),
) -> Spec:
    return {
        "width": "container",
        "height": height,
        "autosize": {"type": "fit", "contains": "padding"},
        "background": None,
        "params": [{"name": name, "value": None} for name in params],
        "layer": layers,
        "config": _CONFIG,
    }


def _expression(text: str) -> Spec:
    return {"expr": text}


# The script sets the signal `last`; a single turn is in the middle.
_TURNS: Spec = {
    "field": "turn",
    "type": "quantitative",
    "title": "turn",
    "scale": {
        "nice": False,
        "zero": False,
        "domain": [_expression("last > 1 ? 1 : 0"), _expression("last > 1 ? last : 2")],
    },
    "axis": {
        "tickMinStep": 1,
        "tickCount": _expression("ceil(width / 90)"),
        "grid": False,
        "labelOverlap": "greedy",
        "labelSeparation": 6,
    },
}

_CURSOR: Spec = {
    "data": {"name": "turns"},
    "transform": [{"filter": "datum.turn === turn"}],
    "mark": {"type": "rule", "color": "var(--ink)", "strokeWidth": 1},
    "encoding": {"x": _TURNS},
}
"""A line at the turn that the reader has chosen."""

_COLUMNS = _expression("width < 480 ? 1 : 3")
"""Of a legend: on a phone each name has a line of its own, and is whole."""


def _axis(ticks: int) -> Spec:
    """An axis of large numbers in short: 0, 50k, 2M."""
    return {"labelExpr": "datum.value ? format(datum.value, '~s') : '0'", "tickCount": ticks}


_AMOUNT: Spec = {
    "field": "tokens",
    "type": "quantitative",
    "title": "tokens",
    "axis": _axis(6),
    "scale": {"domain": [0, _expression("most")]},
}


def _stages(reports: Iterable[Report]) -> list[str]:
    """Every stage that acts anywhere: it has the same mark everywhere."""
    found: dict[str, None] = {}
    for report in reports:
        for run in report.runs:
            for turn in run.turns:
                found.update((action.stage, None) for action in turn.actions)
    return list(found)


def _tokens(stages: Sequence[str]) -> Spec:
    without = {
        "data": {"name": "without"},
        "mark": {
            "type": "line",
            "interpolate": "step",
            "color": "var(--ink)",
            "strokeDash": DASHES[1],
            "strokeWidth": 1.5,
        },
        "encoding": {"x": _TURNS, "y": {**_AMOUNT, "field": "tokens"}},
    }
    params = ["turn", "chosen", "last", "most", "crowded"]
    return _chart(340, [_stack(), without, _CURSOR, _marks(stages)], params)


def _stack() -> Spec:
    """The tokens of each turn by kind; all but the chosen kind are faint."""
    colours = {"domain": list(KINDS), "range": [f"var(--{kind})" for kind in KINDS]}
    return {
        "data": {"name": "kinds"},
        "mark": {
            "type": "area",
            "interpolate": "step",
            "stroke": "var(--paper)",
            "strokeWidth": 0.3,
        },
        "encoding": {
            "x": _TURNS,
            "y": {**_AMOUNT, "stack": "zero"},
            "color": {"field": "kind", "scale": colours, "legend": None},
            "order": {"field": "order"},
            "opacity": {
                "condition": {"test": "chosen === null || chosen === datum.kind", "value": 1},
                "value": 0.15,
            },
        },
    }


def _marks(stages: Sequence[str]) -> Spec:
    """The stages' actions, on the line of the whole prompt: each stage has a shape of its own."""
    legend = {"orient": "top", "title": None, "symbolFillColor": "var(--paper)", "labelLimit": 0}
    shapes = {"domain": stages, "range": _shapes(len(stages))}
    return {
        "data": {"name": "marks"},
        "mark": {
            "type": "point",
            "size": _expression("crowded ? 45 : 90"),
            "stroke": "var(--ink)",
            "strokeWidth": 1.5,
            "opacity": 1,
            "cursor": "pointer",
        },
        "encoding": {
            "x": _TURNS,
            "y": {**_AMOUNT, "field": "total"},
            "fill": {
                "condition": {"test": "datum.outcome !== 'changed'", "value": "var(--ink)"},
                "value": "var(--paper)",
            },
            "shape": {
                "field": "stage",
                "type": "nominal",
                "scale": shapes,
                "legend": {**legend, "columns": _COLUMNS} if stages else None,
            },
        },
    }


def _cost(*, dollars: bool) -> Spec:
    """The page has the legend: which policies these are changes with the reader's choice."""
    axis = _axis(5)
    if dollars:
        axis = {"format": "$,.2f", "tickCount": 5}
    title = "cost, dollars" if dollars else "cost, input tokens"
    amount = {"field": "cost", "type": "quantitative", "title": title, "axis": axis}
    domain = ["theirs", "ours"]
    color = {"domain": domain, "range": ["var(--ink)", "var(--accent)"]}
    dash = {"domain": domain, "range": [DASHES[1], DASHES[0]]}
    lines = {
        "data": {"name": "costs"},
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": {
            "x": _TURNS,
            "y": amount,
            "color": {"field": "series", "scale": color, "legend": None},
            "strokeDash": {"field": "series", "scale": dash, "legend": None},
        },
    }
    return _chart(220, [lines, _CURSOR], ["turn", "last"])


_SEEN: Spec = {
    "field": "seen",
    "type": "quantitative",
    "title": "seen",
    "axis": {"format": "~%", "tickCount": 5},
}


def _recall(points: Sequence[RecallPoint]) -> Spec:
    """Curves of what keeps to a budget, and the replays as points beside them."""
    names = []
    colours = []
    dashes = []
    curves = [point for point in points if point.source != "replay"]
    policies = dict.fromkeys((point.policy, point.source) for point in curves)
    for index, (name, source) in enumerate(policies):
        names.append(name)
        if source == "oracle":
            colours.append("var(--soft)")
            dashes.append(DASHES[1])
        else:
            colours.append(f"var(--series-{index % STEPS})")
            dashes.append(DASHES[0])
    budget = {
        "field": "tokens",
        "type": "quantitative",
        "title": "tokens in the context",
        "scale": {"zero": False},
        "axis": {**_axis(6), "tickCount": _expression("ceil(width / 90)"), "grid": False},
    }
    share = {**_SEEN, "title": "share still visible", "scale": {"domain": [0, 1]}}
    color = {
        "field": "policy",
        "scale": {"domain": names, "range": colours},
        "legend": {"orient": "bottom", "title": None, "columns": _COLUMNS, "labelLimit": 0},
    }
    lines = {
        "data": {"name": "recall"},
        "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 50}},
        "encoding": {
            "x": budget,
            "y": share,
            "color": color,
            "shape": {
                "field": "policy",
                "scale": {"domain": names, "range": _shapes(len(names))},
            },
            "strokeDash": {"field": "policy", "scale": {"domain": names, "range": dashes}},
        },
    }
    return _chart(320, [lines, *_names("replays", budget, share)])


def _policies() -> Spec:
    """What policies cost, beside what they leave in sight; a line joins the best of them."""
    ratio = {
        "field": "ratio",
        "type": "quantitative",
        "title": "cost, in that of the baseline",
        "scale": {"zero": False, "nice": True},
        "axis": {"format": "~%", "tickCount": _expression("ceil(width / 90)"), "grid": False},
    }
    seen = {**_SEEN, "scale": {"zero": False, "nice": True}}
    best = {
        "data": {"name": "best"},
        "mark": {"type": "line", "color": "var(--accent)", "strokeDash": DASHES[1]},
        "encoding": {"x": ratio, "y": seen},
    }
    return _chart(280, [best, *_names("policies", ratio, seen)])


def _names(name: str, x: Spec, y: Spec) -> list[Spec]:
    """Points with their names beside them, where the page's script has found place."""
    point = {
        "data": {"name": name},
        "mark": {"type": "point", "filled": True, "size": 110, "opacity": 1},
        "encoding": {"x": x, "y": y, "color": {"value": "var(--ink)"}},
    }
    mark: Spec = {
        "type": "text",
        "fontSize": 12,
        "color": "var(--ink)",
        "baseline": "middle",
        "align": _expression("datum.align"),
        "dx": _expression("datum.align === 'left' ? 9 : -9"),
        "dy": _expression("datum.dy"),
    }
    outline = {**mark, "stroke": "var(--paper)", "strokeWidth": 3}
    encoding = {"x": x, "y": y, "text": {"field": "policy"}}
    texts = [{"data": {"name": name}, "mark": one, "encoding": encoding} for one in (outline, mark)]
    return [point, *texts]


def _shapes(count: int) -> list[str]:
    return list(islice(cycle(SHAPES), count))
