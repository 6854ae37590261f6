"""The page's charts: specifications of Vega-Lite, and the library that draws them.

Colours are names of the page's style sheet, so a chart is light or dark as its reader is.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from itertools import cycle, islice
from typing import TypeAlias

from .report import KINDS, Report

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
MANY = 40
"""With more marks than this they are drawn smaller."""

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


def charts(report: Report) -> dict[str, object]:
    """The charts of *report* by name, compiled; the page's script gives them their data."""
    import vl_convert

    specs: dict[str, Spec] = {}
    if report.turns:
        specs["tokens"] = _tokens(report)
        specs["cost"] = _cost(report)
        if report.recall:
            specs["recall"] = _recall(report)
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


def _turns(report: Report) -> Spec:
    """The axis of turns; a single one is in the middle."""
    last = len(report.turns)
    domain = [1, last] if last > 1 else [0, 2]
    return {
        "field": "turn",
        "type": "quantitative",
        "title": "turn",
        "scale": {"nice": False, "domain": domain},
        "axis": {"tickMinStep": 1, "tickCount": 10, "grid": False},
    }


def _cursor(report: Report) -> Spec:
    """A line at the turn that the reader has chosen."""
    return {
        "data": {"name": "turns"},
        "transform": [{"filter": "datum.turn === turn"}],
        "mark": {"type": "rule", "color": "var(--ink)", "strokeWidth": 1},
        "encoding": {"x": _turns(report)},
    }


def _axis(ticks: int) -> Spec:
    """An axis of large numbers in short: 0, 50k, 2M."""
    return {"labelExpr": "datum.value ? format(datum.value, '~s') : '0'", "tickCount": ticks}


_AMOUNT: Spec = {"field": "tokens", "type": "quantitative", "title": "tokens", "axis": _axis(6)}


def _tokens(report: Report) -> Spec:
    without = {
        "data": {"name": "without"},
        "mark": {
            "type": "line",
            "interpolate": "step",
            "color": "var(--ink)",
            "strokeDash": DASHES[1],
            "strokeWidth": 1.5,
        },
        "encoding": {"x": _turns(report), "y": {**_AMOUNT, "field": "tokens"}},
    }
    layers = [_stack(report), without, _cursor(report), _marks(report)]
    return _chart(340, layers, ["turn", "chosen"])


def _stack(report: Report) -> Spec:
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
            "x": _turns(report),
            "y": {**_AMOUNT, "stack": "zero"},
            "color": {"field": "kind", "scale": colours, "legend": None},
            "order": {"field": "order"},
            "opacity": {
                "condition": {"test": "chosen === null || chosen === datum.kind", "value": 1},
                "value": 0.15,
            },
        },
    }


def _marks(report: Report) -> Spec:
    """The stages' actions, on the line of the whole prompt: each stage has a shape of its own."""
    actions = [action.stage for turn in report.turns for action in turn.actions]
    stages = list(dict.fromkeys(actions))
    shapes = {"domain": stages, "range": _shapes(len(stages))}
    legend = {"orient": "top", "title": None, "symbolFillColor": "var(--paper)", "columns": 3}
    return {
        "data": {"name": "marks"},
        "mark": {
            "type": "point",
            "size": 90 if len(actions) <= MANY else 45,
            "stroke": "var(--ink)",
            "strokeWidth": 1.5,
            "opacity": 1,
            "cursor": "pointer",
        },
        "encoding": {
            "x": _turns(report),
            "y": {**_AMOUNT, "field": "total"},
            "fill": {
                "condition": {"test": "datum.outcome !== 'changed'", "value": "var(--ink)"},
                "value": "var(--paper)",
            },
            "shape": {
                "field": "stage",
                "type": "nominal",
                "scale": shapes,
                "legend": legend if stages else None,
            },
        },
    }


def _shapes(count: int) -> list[str]:
    return list(islice(cycle(SHAPES), count))


def _cost(report: Report) -> Spec:
    series = [report.policy, report.baseline]
    axis = _axis(5)
    if report.unit == "dollars":
        axis = {"format": "$,.2f", "tickCount": 5}
    amount = {
        "field": "cost",
        "type": "quantitative",
        "title": f"cost, {report.unit}",
        "axis": axis,
    }
    color = {
        "field": "series",
        "scale": {"domain": series, "range": ["var(--accent)", "var(--ink)"]},
        "legend": {"orient": "top", "title": None},
    }
    dash = {"field": "series", "scale": {"domain": series, "range": DASHES[:2]}}
    lines = {
        "data": {"name": "costs"},
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": {"x": _turns(report), "y": amount, "color": color, "strokeDash": dash},
    }
    return _chart(220, [lines, _cursor(report)], ["turn"])


def _recall(report: Report) -> Spec:
    policies = dict.fromkeys((point.policy, point.oracle) for point in report.recall)
    names = []
    colours = []
    dashes = []
    for index, (name, is_oracle) in enumerate(policies):
        names.append(name)
        if is_oracle:
            colours.append("var(--soft)")
            dashes.append(DASHES[1])
        else:
            colours.append(f"var(--series-{index % STEPS})")
            dashes.append(DASHES[0])
    budget = {
        "field": "budget",
        "type": "quantitative",
        "title": "tokens in the context",
        "scale": {"zero": False},
        "axis": {**_axis(6), "grid": False},
    }
    share = {
        "field": "recall",
        "type": "quantitative",
        "title": "share still visible",
        "scale": {"domain": [0, 1]},
        "axis": {"format": ".0%", "tickCount": 5},
    }
    color = {
        "field": "policy",
        "scale": {"domain": names, "range": colours},
        "legend": {"orient": "bottom", "title": None, "columns": 2, "labelLimit": 0},
    }
    lines = {
        "data": {"name": "recall"},
        "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 70}},
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
    return _chart(280, [lines])
