"""The page's charts: specifications of Vega-Lite, and the library that draws them.

Colours are names of the page's style sheet, so a chart is light or dark as its reader is.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
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
MANY = 40  # marks, from which on they are drawn smaller

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
    """The plotting library, whole, as a script that needs no network.

    Takes a second or two, once in a process.
    """
    import vl_convert

    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)


def charts(report: Report) -> dict[str, object]:
    """The charts of *report* by name, compiled; the page's script gives them their data."""
    import vl_convert

    found = {"tokens": _tokens(report), "cost": _cost(report)} if report.turns else {}
    if report.recall and report.turns:
        found["recall"] = _recall(report)
    return {
        name: vl_convert.vegalite_to_vega(_encodable(spec), vl_version=VEGA_LITE)
        for name, spec in found.items()
    }


def _encodable(spec: Spec) -> str:
    """*spec* as JSON; names that cannot be encoded become what the page makes of them."""
    return json.dumps(spec, ensure_ascii=False).encode("utf-8", "replace").decode()


def _chart(height: int, layers: Sequence[Spec], params: Sequence[str] = ()) -> Spec:
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
    """The axis of turns; a single one stands in the middle."""
    last = len(report.turns)
    return {
        "field": "turn",
        "type": "quantitative",
        "title": "turn",
        "scale": {"nice": False, "domain": [1, last] if last > 1 else [0, 2]},
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
    return _chart(
        340, [_stack(report), without, _cursor(report), _marks(report)], ["turn", "chosen"]
    )


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
    acted = [action.stage for turn in report.turns for action in turn.actions]
    stages = list(dict.fromkeys(acted))
    shapes = {"domain": stages, "range": [SHAPES[i % len(SHAPES)] for i in range(len(stages))]}
    legend = {"orient": "top", "title": None, "symbolFillColor": "var(--paper)", "columns": 3}
    return {
        "data": {"name": "marks"},
        "mark": {
            "type": "point",
            "size": 90 if len(acted) <= MANY else 45,
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


def _cost(report: Report) -> Spec:
    series = [report.policy, report.baseline]
    axis = {"format": "$,.2f", "tickCount": 5} if report.unit == "dollars" else _axis(5)
    lines = {
        "data": {"name": "costs"},
        "mark": {"type": "line", "strokeWidth": 2},
        "encoding": {
            "x": _turns(report),
            "y": {
                "field": "cost",
                "type": "quantitative",
                "title": f"cost, {report.unit}",
                "axis": axis,
            },
            "color": {
                "field": "series",
                "scale": {"domain": series, "range": ["var(--accent)", "var(--ink)"]},
                "legend": {"orient": "top", "title": None},
            },
            "strokeDash": {"field": "series", "scale": {"domain": series, "range": DASHES[:2]}},
        },
    }
    return _chart(220, [lines, _cursor(report)], ["turn"])


def _recall(report: Report) -> Spec:
    policies = list(dict.fromkeys((point.policy, point.oracle) for point in report.recall))
    names = [name for name, _ in policies]
    colours = [
        "var(--soft)" if oracle else f"var(--series-{i % STEPS})"
        for i, (_, oracle) in enumerate(policies)
    ]
    dashes = [DASHES[1] if oracle else DASHES[0] for _, oracle in policies]
    lines = {
        "data": {"name": "recall"},
        "mark": {"type": "line", "strokeWidth": 2, "point": {"size": 70}},
        "encoding": {
            "x": {
                "field": "budget",
                "type": "quantitative",
                "title": "tokens in the context",
                "scale": {"zero": False},
                "axis": {**_axis(6), "grid": False},
            },
            "y": {
                "field": "recall",
                "type": "quantitative",
                "title": "share still visible",
                "scale": {"domain": [0, 1]},
                "axis": {"format": ".0%", "tickCount": 5},
            },
            "color": {
                "field": "policy",
                "scale": {"domain": names, "range": colours},
                "legend": {"orient": "bottom", "title": None, "columns": 2, "labelLimit": 0},
            },
            "shape": {
                "field": "policy",
                "scale": {
                    "domain": names,
                    "range": [SHAPES[i % len(SHAPES)] for i in range(len(names))],
                },
            },
            "strokeDash": {"field": "policy", "scale": {"domain": names, "range": dashes}},
        },
    }
    return _chart(280, [lines])
