"""The documentation is built: pages, links and anchors, and the reference from the docstrings."""

from __future__ import annotations

import inspect
import re
import shutil
from collections.abc import Iterator
from html import unescape
from pathlib import Path

import pytest
from places import ROOT
from selenium.webdriver import Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

import ctxpipe
from scripts.heading_breaks import on_post_page


def test_the_site_holds_every_page(site):
    pages = {
        page.relative_to(ROOT / "docs").with_suffix("") for page in (ROOT / "docs").rglob("*.md")
    }
    built = {page.parent.relative_to(site) for page in site.rglob("index.html")}

    assert {page.parent if page.name == "index" else page for page in pages} <= built


def test_the_list_for_language_models_links_every_page(site):
    text = (site / "llms.txt").read_text("utf-8")
    links = set(re.findall(r"^- \[[^]]+\]\(([^)]+)\)", text, re.MULTILINE))
    built = {page.relative_to(site).as_posix() for page in site.rglob("index.html")}

    assert text.startswith("# ctxpipe\n\n> ")
    assert links == built


def test_the_reference_holds_every_public_name(site):
    reference = "".join(page.read_text("utf-8") for page in (site / "api").rglob("*.html"))
    described = set(re.findall(r'id="ctxpipe\.(\w+)"', reference))

    assert set(ctxpipe.__all__) <= described


def test_a_signature_has_a_line_for_each_parameter(site):
    page = (site / "api" / "pipeline" / "index.html").read_text("utf-8")
    start = page.index('id="ctxpipe.ContextPipeline"')
    shown = unescape(re.sub(r"<[^>]+>", "", page[start : start + 8_000]))
    parameters = inspect.signature(ctxpipe.ContextPipeline).parameters

    for name in parameters:
        assert re.search(rf"^    \*?{name}: .*,$", shown, re.MULTILINE)


def shown(page: Path) -> str:
    """Return the text of a built *page*."""
    return unescape(re.sub(r"<[^>]+>", "", page.read_text("utf-8")))


def test_the_reference_shows_import_paths(site):
    headings = re.findall(
        r"^\s+(ctxpipe[\w.]*\.\w+)$", shown(site / "api/stages/index.html"), re.MULTILINE
    )

    for name in ("DirectOffload", "MediaOffload", "Preview", "Evidence", "Breaker", "RatioGate"):
        assert f"ctxpipe.{name}" in headings


def test_the_reference_shows_defaults_as_values(site):
    pages = {page.parent.name: shown(page) for page in (site / "api").rglob("index.html")}

    assert [
        name for name, text in pages.items() if re.search(r"= \(?(setting|lambda)\b", text)
    ] == []
    assert "min_chars: int = 1_000," in pages["stages"]
    assert "ratio: float | Decimal = 0.2" in pages["stages"]
    assert "max_retries: int = 2," in pages["summarizers"]


def test_a_page_asks_no_other_machine_for_anything(site):
    loaded = re.compile(r"<(?:link|script|img|iframe)\b[^>]*?(?:href|src)=\"?(https?://[^\s\">]+)")
    found = {
        url for page in site.rglob("*.html") for url in loaded.findall(page.read_text("utf-8"))
    }

    assert found == set()


@pytest.fixture
def phone(tmp_path) -> Iterator[Chrome]:
    """A browser with a screen of 390 pixels."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip(
            "there is no Chromium with its driver: apt-get install chromium chromium-driver"
        )
    options = Options()
    options.binary_location = chromium
    for switch in ("--headless", "--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND"):
        options.add_argument(switch)
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    screen = {"width": 390, "height": 844, "pixelRatio": 1.0}
    options.add_experimental_option("mobileEmulation", {"deviceMetrics": screen})
    service = Service(driver)
    with Chrome(options=options, service=service) as chrome:
        yield chrome
    vars(service)["process"] = None  # older versions would stop it again and leave a socket open


BROKEN_NAMES = """
const names = [...document.querySelectorAll(".md-typeset td code")];
const broken = names.filter(
  (name) => !/[^A-Za-z0-9_]/.test(name.textContent) && name.getClientRects().length > 1
);
return [window.innerWidth, names.length, broken.map((name) => name.textContent)];
"""
"""Returns the width of the screen, and the names in tables that continue on another line."""


@pytest.mark.parametrize("page", ["adapters/openai", "sessions", "settings"])
def test_on_a_phone_a_name_in_a_table_stays_in_one_piece(site, phone, page):
    phone.get((site / page / "index.html").as_uri())

    width, count, broken = phone.execute_script(BROKEN_NAMES)

    assert (width, broken) == (390, [])
    assert count > 0


def test_a_heading_of_the_reference_may_break_behind_each_dot():
    heading = '<span class="doc doc-object-name doc-function-name">ctxpipe.tools.as_tool</span>'

    assert on_post_page(f"{heading}<p>ctxpipe.tools</p>") == (
        '<span class="doc doc-object-name doc-function-name">ctxpipe.<wbr>tools.<wbr>as_tool</span>'
        "<p>ctxpipe.tools</p>"
    )
