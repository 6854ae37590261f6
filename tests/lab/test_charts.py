"""The page's charts, as they are handed to the plotting library."""

from __future__ import annotations

from collections.abc import Iterator

from ctxpipe.lab.charts import charts, library
from ctxpipe.lab.report import Action, Figures, PageTurn, RecallPoint, Report, Run

FIGURES = Figures("a-policy", 1, 1.0, 1.0, 1.0, 0.5, 9.0, 0, 1.0, 1.0, 1.0)


def test_no_name_of_a_report_gets_into_an_expression():
    turn = PageTurn({"user": 5.0}, 6.0, (Action("a-stage", "changed"),))
    recall = (RecallPoint("a-policy", 10.0, 0.5), RecallPoint("with-it", 5.0, 0.5, "replay"))
    runs = tuple(Run(name, (turn,)) for name in ("without-it", "with-it"))
    report = Report("", runs, recall=recall)

    def expressions(value: object) -> Iterator[str]:
        for name, item in value.items() if isinstance(value, dict) else ():
            if isinstance(item, str) and name in {"signal", "expr", "test", "update", "init"}:
                yield item
        for item in (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        ):
            yield from expressions(item)

    found = list(expressions(charts([report], [FIGURES])))
    assert found
    assert not any(
        name in text for name in ("a-stage", "a-policy", "with-it", "without-it") for text in found
    )


def test_there_is_a_chart_for_whatever_the_reports_hold():
    runs = (Run("ours", (PageTurn({"user": 5.0}, 6.0),)),)
    recall = (RecallPoint("keep last", 10.0, 0.5),)

    assert list(charts([Report("", runs, recall=recall)])) == ["tokens", "cost", "recall"]
    assert list(charts([Report("", runs)])) == ["tokens", "cost"]
    assert list(charts([Report("", runs)], [FIGURES])) == ["tokens", "cost", "policies"]
    assert charts([Report("", (Run("ours", ()),))]) == {}


def test_the_library_is_one_script_that_fetches_nothing():
    assert "window.vegaEmbed" in library()
    assert "import(" not in library().replace("import()", "")
