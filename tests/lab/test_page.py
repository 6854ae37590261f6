"""The page of a report: as text, and in a real Chromium that nothing leaves."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from ctxpipe import ContextPipeline, DirectOffload, SettingsError
from ctxpipe.lab.narration import narrate
from ctxpipe.lab.page import page
from ctxpipe.lab.replay import Moment, PipelineMaker, replay
from ctxpipe.lab.report import (
    Action,
    BlockFate,
    CostShare,
    Figures,
    PageTurn,
    PolicyRun,
    Replaced,
    Report,
)
from ctxpipe.lab.transcripts import Transcript, parse_transcript
from ctxpipe.lab.workbench import Workbench
from ctxpipe.tokens.spent import KINDS

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!-- \u2028 \" ' & \ud800"
SWITCHES = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1200,900",
)


def transcript(turns: int = 8, text: str = "x = 1\n" * 400) -> Transcript:
    """An agent that reads a file in each turn."""
    messages: list[object] = [{"role": "user", "content": f"Read them all. {HOSTILE}"}]
    for turn in range(turns):
        call = {
            "type": "tool_use",
            "id": f"t{turn}",
            "name": "Read",
            "input": {"path": f"f{turn}.py"},
        }
        result = {
            "type": "tool_result",
            "tool_use_id": f"t{turn}",
            "content": f"file {turn}\n{text}{HOSTILE}",
        }
        messages += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result]},
        ]
    messages.append({"role": "assistant", "content": "All read."})
    return parse_transcript(
        json.dumps({"system": "Be brief.", "messages": messages}), "a-conversation"
    )


def with_offload(bench: Workbench) -> ContextPipeline:
    return ContextPipeline([DirectOffload(bench.storage)])


def without(_: Workbench) -> ContextPipeline:
    return ContextPipeline()


async def replayed_through(makers: dict[str, PipelineMaker]) -> Report:
    replays = {}
    for name, make in makers.items():
        moments: list[Moment] = []
        replays[name] = await replay(transcript(), make, watch=moments.append), moments
    return narrate(transcript(), replays)


@pytest.fixture(scope="module")
def replayed() -> Report:
    """The report of replays with offloading, without stages, and again without stages."""
    return anyio.run(replayed_through, {"none": without, "other": without, "mine": with_offload})


def row(policy: str, cost: float, ratio: float = 1.0, seen: float = 1.0) -> Figures:
    return Figures(policy, 8, cost, ratio, 1.0, 0.5, 900.0, 0, seen, seen, 1.0, 1.0)


def long_run(
    policy: str,
    turns: int,
    tokens: float,
    price: float,
    action: Callable[[int], Action] | None = None,
) -> PolicyRun:
    """Turns that grow by *tokens* of each kind, each with an *action* where that is given."""
    made = []
    for turn in range(1, turns + 1):
        actions = [action(turn)] if action else []
        made.append(PageTurn(dict.fromkeys(KINDS, tokens * turn), price, actions))
    shares = [CostShare("Read", turns, 10.0 * turns, 100.0 * turns, price * turns)]
    return PolicyRun(row(policy, price * turns), made, shares)


def offload(turn: int) -> Action:
    """A long text that is like no other left the context."""
    original = "".join(
        f"line {n} of {turn}: something that a tool has printed, more or less\n" for n in range(300)
    )
    placeholder = "[Content offloaded to: /there/t.md]"
    swap = Replaced("result of Read", original, placeholder, "/there/t.md", 4000.0, 12.0)
    return Action("BatchOffload", "changed", "1 block moved to files", 3988.0, [swap])


def long_report(turns: int = 500) -> Report:
    """Return the largest report that the page must support; each turn has a long text."""
    blocks = [
        BlockFate("result of Read", "results", 4000.0, turn, "moved") for turn in range(1, 16)
    ]
    ours = dataclasses.replace(long_run("with", turns, 100.0, 0.01, offload), blocks=blocks)
    theirs = long_run("without", turns, 450.0, 0.05)
    return Report("A long conversation", (theirs, ours), ("Read",) * turns)


def figures_of(report: Report) -> list[Figures]:
    return [run.figures for run in report.runs]


def written(report: Report) -> str:
    return page([report], figures_of(report), "dollars")


def data_of(written: str) -> dict[str, Any]:
    """Return the data that the script of the page reads."""
    [found] = re.findall(r'id="report">(.*?)</script>', written, re.DOTALL)
    return dict(json.loads(found))


# As text ------------------------------------------------------------------------------------------


def test_no_text_of_a_transcript_becomes_markup():
    replaced = Replaced(HOSTILE, HOSTILE, HOSTILE, HOSTILE, 2.0, 1.0)
    turn = PageTurn({"user": 5.0}, 6.0, [Action(HOSTILE, HOSTILE, HOSTILE, 1.0, [replaced])])
    run = PolicyRun(
        row(HOSTILE, 2.0),
        [turn],
        [CostShare(HOSTILE, 1, 1.0, 1.0, 1.0)],
        [BlockFate(HOSTILE, "user", 5.0, 1, HOSTILE)],
    )
    report = Report(HOSTILE, (run, run, run), (HOSTILE,))

    made = page([report, report], figures_of(report), HOSTILE)

    assert "<img src=x" not in made
    assert made.count("</script>") == 2  # that of the data, and that of the page


def test_the_advised_policy_is_shown_first_next_to_the_baseline():
    rows = row("none", 4.0), row("a", 2.0, 0.5, 0.95), row("b", 1.0, 0.25, 0.5)
    turn = PageTurn({"user": 5.0}, 1.0)

    data = data_of(written(Report("", [PolicyRun(each, [turn]) for each in rows], ("",))))

    assert data["lead"].startswith("1 turn: a cost $2.00 instead of $4.00 (none), 50.0% less")
    assert data["advice"][:2] == ["Use", "a"]
    assert data["chosen"] == [1, 0]


def test_a_text_that_occurs_twice_is_on_the_page_once():
    texts = data_of(written(long_report(3)))["texts"]

    assert len(texts) == len(set(texts)) == 4  # three results, one placeholder


def test_a_page_of_500_turns_stays_below_3_megabytes():
    size = len(written(long_report()).encode())

    print(f"500 turns: {size:,} bytes")
    assert size < 3_000_000


# In a browser -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip(
            "there is no Chromium with its driver: apt-get install chromium chromium-driver"
        )
    options = Options()
    options.binary_location = chromium
    for switch in (*SWITCHES, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = Service(driver)
    with Chrome(options=options, service=service) as chrome:
        yield chrome
    vars(service)["process"] = None  # older versions would stop it again and leave a socket open


Show = Callable[..., Chrome]


@pytest.fixture
def show(browser: Chrome, tmp_path: Path) -> Show:
    """Opens the page of a report, and waits until it is drawn."""

    def open_page(*reports: Report, unit: str = "input tokens", at: str = "") -> Chrome:
        (tmp_path / "page.html").write_text(page(reports, figures_of(reports[0]), unit))
        for kind in ("browser", "performance"):
            logged(browser, kind)  # what another page has left
        browser.get(f"{(tmp_path / 'page.html').as_uri()}{at}")
        WebDriverWait(browser, 30).until(lambda chrome: drawn(chrome) is not None)
        return browser

    return open_page


def drawn(chrome: Chrome) -> str | None:
    """Milliseconds from opening the page until everything was drawn."""
    found = chrome.execute_script("return document.documentElement.dataset.drawn ?? null")
    return None if found is None else str(found)


def logged(chrome: Chrome, kind: str) -> list[dict[str, str]]:
    """Return the log entries since the last call."""
    return list(chrome.get_log(kind))  # type: ignore[no-untyped-call]


def text_of(chrome: Chrome, selector: str) -> str:
    return str(chrome.find_element(By.CSS_SELECTOR, selector).get_property("textContent"))


def mark(chrome: Chrome, number: int = 0) -> WebElement:
    return chrome.find_elements(By.CSS_SELECTOR, "#tokens path.mark")[number]


def test_a_report_without_turns_says_so(browser, tmp_path):
    report = Report("Nothing", [PolicyRun(row("none", 0.0))])
    (tmp_path / "page.html").write_text(page([report], figures_of(report)))
    browser.get((tmp_path / "page.html").as_uri())

    assert text_of(browser, "#lead") == "There was no turn."


def test_several_conversations_are_on_one_page_with_their_sums(show):
    runs = long_run("none", 3, 100.0, 4.0), long_run("ours", 3, 100.0, 3.0)
    reports = (Report(f"{name}.jsonl", runs, ("",) * 3) for name in "xy")
    chrome = show(*reports, unit="dollars")

    assert chrome.title == "2 conversations"
    assert text_of(chrome, "#lead").startswith("2 conversations, 6 turns: ours cost")
    links = chrome.find_elements(By.CSS_SELECTOR, "#conversations a")
    assert [link.get_property("textContent") for link in links] == ["x.jsonl", "y.jsonl"]
    # each tool's share over both: 3 turns of 3 dollars, twice
    assert "$18.00" in text_of(chrome, "#total-shares")
    assert "95.0%" not in text_of(chrome, "#policies")
    assert "the largest prompt, in tokens as billed" in text_of(chrome, "#policies dl")


def test_both_charts_are_drawn_and_the_console_stays_empty(show, replayed):
    chrome = show(replayed)

    for name in ("tokens", "cost"):
        box = chrome.find_element(By.CSS_SELECTOR, f"#{name} svg").rect
        assert box["width"] > 500
        assert box["height"] > 150
    assert len(chrome.find_elements(By.CSS_SELECTOR, "#tokens path.mark")) == 8
    assert logged(chrome, "browser") == []


def test_the_page_sends_no_request(show, replayed):
    chrome = show(replayed)

    events = [json.loads(entry["message"])["message"] for entry in logged(chrome, "performance")]
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert len(asked) == 1
    assert asked[0].startswith("file://")


def test_the_page_shows_markup_in_a_transcript_as_text(show, replayed):
    report = dataclasses.replace(replayed, title=HOSTILE)
    chrome = show(report)
    chrome.execute_script(
        "arguments[0].click()", chrome.find_element(By.CSS_SELECTOR, "button[data-action]")
    )

    assert chrome.find_elements(By.TAG_NAME, "img") == []
    assert chrome.title != "owned"
    assert "<img src=x onerror=" in text_of(chrome, "#action pre.original")


def test_hovering_over_the_chart_shows_the_turn(show, replayed):
    chrome = show(replayed)
    plot = chrome.find_element(By.CSS_SELECTOR, "#tokens svg")

    ActionChains(chrome).move_to_element(plot).perform()

    assert re.match(r"Turn [456]: [\d,]+ tokens", text_of(chrome, "#tokens .tip"))
    assert re.match(r"Turn [456]: Read", text_of(chrome, "#readout h4"))
    assert "DirectOffload: changed" in text_of(chrome, "#readout")


def test_a_click_on_an_action_shows_the_placeholder_and_what_it_replaced(show, replayed):
    chrome = show(replayed)

    ActionChains(chrome).click(mark(chrome, 2)).perform()

    assert text_of(chrome, "#action-title") == "Turn 4: DirectOffload changed"
    assert text_of(chrome, "#action pre.placeholder").startswith(
        "[Tool result offloaded to file: /ctxpipe/"
    )
    assert text_of(chrome, "#action pre.original").startswith("file 2\nx = 1\n")


def test_the_keyboard_reaches_a_turn_its_action_and_the_way_back(show, replayed):
    chrome = show(replayed)

    def focused() -> str:
        return str(
            chrome.execute_script(
                "const at = document.activeElement; return at.id || at.textContent"
            )
        )

    def press(*keys: str):
        ActionChains(chrome).send_keys(*keys).perform()

    for _ in range(20):
        if focused() == "turn":
            break
        press(Keys.TAB)
    assert focused() == "turn"
    press(Keys.ARROW_LEFT, Keys.ARROW_LEFT)
    assert text_of(chrome, "#readout h4") == "Turn 7: Read"
    press(Keys.TAB, Keys.TAB)
    assert focused().startswith("DirectOffload: changed")
    press(Keys.ENTER)
    assert text_of(chrome, "#action-title") == "Turn 7: DirectOffload changed"
    press(Keys.ESCAPE)
    assert focused().startswith("DirectOffload: changed")


def test_a_block_that_left_opens_what_replaced_it(show, replayed):
    chrome = show(replayed)
    where = next(block for block in replayed.runs[2].blocks if block.until == 5)

    button = next(
        found
        for found in chrome.find_elements(By.CSS_SELECTOR, "td button[data-action]")
        if found.get_property("textContent") == where.fate
    )
    chrome.execute_script("arguments[0].click()", button)

    assert text_of(chrome, "#action-title") == "Turn 5: DirectOffload changed"
    assert where.name in text_of(chrome, "#action-body h3")


def test_without_the_baseline_the_chart_shows_the_rest_larger(show, replayed):
    chrome = show(replayed)
    before = int(float(chrome.find_element(By.CSS_SELECTOR, "#tokens path.area").rect["height"]))

    chrome.find_element(By.ID, "compare").click()

    def height(_: Chrome) -> bool:
        return bool(
            chrome.find_element(By.CSS_SELECTOR, "#tokens path.area").rect["height"] > 2 * before
        )

    WebDriverWait(chrome, 10).until(height)


def test_a_kind_can_be_shown_alone(show, replayed):
    chrome = show(replayed)
    button = chrome.find_element(By.CSS_SELECTOR, "button[data-kind=placeholders]")
    drawn_kinds = len(chrome.find_elements(By.CSS_SELECTOR, "#tokens path.area"))
    assert drawn_kinds == len(
        {kind for turn in replayed.runs[2].turns for kind, tokens in turn.tokens.items() if tokens}
    )

    button.click()

    def faint() -> int:
        return len(chrome.find_elements(By.CSS_SELECTOR, '#tokens path.area[opacity="0.15"]'))

    WebDriverWait(chrome, 10).until(lambda _: faint() == drawn_kinds - 1)
    assert button.get_attribute("aria-pressed") == "true"


@pytest.mark.parametrize(
    ("scheme", "paper"), [("light", "rgb(255, 255, 255)"), ("dark", "rgb(21, 24, 27)")]
)
def test_the_page_follows_the_light_or_dark_setting_of_the_reader(show, scheme, paper):
    chrome = show(long_report(3))

    wish = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", wish)

    assert chrome.execute_script("return getComputedStyle(document.body).backgroundColor") == paper


PARTS_THAT_ARE_CUT = """
const boxes = [...document.querySelectorAll('.scroll')];
const wide = boxes.filter(box => box.scrollWidth > box.clientWidth);
const names = [...document.querySelectorAll('.chart svg text')].filter(text => {
  const own = text.getBoundingClientRect(), chart = text.closest('svg').getBoundingClientRect();
  return own.width && (own.left < chart.left - 1 || own.right > chart.right + 1);
});
return [...wide.map(box => box.ariaLabel), ...names.map(text => text.textContent)];
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(show, replayed, scheme):
    chrome = show(replayed, replayed)
    phone = {"width": 390, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    wish = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    chrome.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    chrome.execute_cdp_cmd("Emulation.setEmulatedMedia", wish)
    try:
        chrome.refresh()
        WebDriverWait(chrome, 30).until(lambda _: drawn(chrome) is not None)
        chrome.execute_script(
            "for (const one of document.querySelectorAll('details')) one.open = true"
        )
        WebDriverWait(chrome, 10).until(
            lambda _: len(chrome.find_elements(By.CSS_SELECTOR, "#turns tr")) == 10
        )
        assert chrome.execute_script("return document.documentElement.scrollWidth") == 390
        assert chrome.execute_script(PARTS_THAT_ARE_CUT) == []
        assert 250 < chrome.find_element(By.CSS_SELECTOR, "#tokens svg").rect["width"] <= 390
        assert chrome.find_element(By.ID, "turn").rect["width"] > 200
    finally:
        chrome.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_any_two_policies_can_be_shown_side_by_side(show, replayed):
    chrome = show(replayed)

    def heads() -> list[str]:
        found = chrome.find_elements(By.CSS_SELECTOR, "#facts th")
        return [str(head.get_property("textContent")) for head in found]

    assert heads() == ["", "mine", "none"]
    Select(chrome.find_element(By.ID, "ours")).select_by_visible_text("other")
    Select(chrome.find_element(By.ID, "theirs")).select_by_visible_text("mine")
    assert heads() == ["", "other", "mine"]
    assert "other and mine" in str(chrome.find_element(By.ID, "cost").get_attribute("aria-label"))
    WebDriverWait(chrome, 10).until(
        lambda _: not chrome.find_elements(By.CSS_SELECTOR, "#tokens path.mark")
    )
    assert "No stage acted." in text_of(chrome, "#readout")
    assert logged(chrome, "browser") == []


def test_each_conversation_has_an_address_on_the_page(show, replayed):
    short = dataclasses.replace(
        long_report(3), runs=(*long_report(3).runs, long_run("other", 3, 1.0, 1.0))
    )
    chrome = show(replayed, short, at="#conversation-1")

    assert text_of(chrome, "#name") == "A long conversation"
    assert chrome.find_element(By.ID, "turn").get_attribute("max") == "3"
    chrome.execute_script("location.hash = '#conversation-0'")
    WebDriverWait(chrome, 10).until(lambda _: text_of(chrome, "#name") == "a-conversation")
    assert logged(chrome, "browser") == []


def test_every_figure_is_in_a_table(show):
    chrome = show(long_report(3), unit="dollars")
    chrome.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")

    def cells(_: Chrome) -> bool:
        found = chrome.execute_script(
            "return [...document.querySelectorAll('td')].map(cell => cell.textContent)"
        )
        return {"300", "3,000", "13,500", "$0.0300", "$0.150", "3,988", "100.0%"} <= set(found)

    WebDriverWait(chrome, 10).until(cells)
    assert "BatchOffload 3 times, 11,964 tokens saved." in text_of(chrome, "#actions")


def test_500_turns_are_drawn(show):
    chrome = show(long_report())

    print(f"500 turns: drawn {drawn(chrome)} ms after the page was opened")
    assert len(chrome.find_elements(By.CSS_SELECTOR, "#tokens path.mark")) == 500
    assert logged(chrome, "browser") == []


def test_without_a_report_the_page_says_what_is_missing():
    with pytest.raises(SettingsError, match="no report to show"):
        page([], [])


def test_what_each_agent_cost_and_what_was_carried_is_on_the_page(show):
    def agent(name: str, price: float) -> Report:
        share = CostShare("Read", 3, 30.0, 300.0, price * 3, carrying=price)
        run = dataclasses.replace(long_run("none", 3, 100.0, price), shares=[share])
        return Report(f"{name}.jsonl", (run, run), ("",) * 3, agent=name)

    chrome = show(agent("", 4.0), agent("Explore", 1.0), agent("Explore", 1.0), unit="dollars")

    rows = chrome.find_elements(By.CSS_SELECTOR, "#agents tbody tr")
    cells = [[str(cell.get_property("textContent")) for cell in line(row)] for row in rows]
    assert cells == [
        ["main agent", "1", "3", "66.7%", "$12.00", "$12.00"],
        ["Explore", "2", "6", "33.3%", "$6.00", "$6.00"],
    ]
    assert "carrying" in text_of(chrome, "#total-shares thead")
    assert "$6.00" in text_of(chrome, "#total-shares tbody")  # 4 + 1 + 1, of 18 dollars


def line(row: WebElement) -> list[WebElement]:
    """The cells of a row of a table, its heading first."""
    return row.find_elements(By.CSS_SELECTOR, "th, td")
