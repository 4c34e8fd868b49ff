"""The page in a browser: headless Chromium opens it, and does what a reader does."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import onnxfuse
from onnxfuse import pipeline
from onnxfuse.cli.quantities import human_bytes, human_flops, human_seconds
from onnxfuse.model import files
from onnxfuse.reporting.html.page import page
from onnxfuse.reporting.phrases import one_line
from onnxfuse.reporting.records import Estimate, Launched, Report

from .made import HOSTILE, OPS, hostile, layered, node, report

MODEL = Path(__file__).parents[3] / "models" / "bert.ts.onnx"
SCRIPT = Path(onnxfuse.__file__).parent / "reporting" / "html" / "format.js"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
WANTED = "pages are opened in Chromium: apt-get install chromium chromium-driver, and pip install selenium"

webdriver = pytest.importorskip("selenium.webdriver", reason=WANTED)
wait = pytest.importorskip("selenium.webdriver.support.wait", reason=WANTED)
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=WANTED)


@dataclass
class Browser:
    """A window, and what the tests ask of it."""

    driver: Any

    def do(self, script: str, *values: object) -> Any:
        return self.driver.execute_script(script, *values)

    def open(self, place: Path) -> None:
        self.complaints()  # of the page before
        self.driver.get(place.as_uri())
        wait.WebDriverWait(self.driver, 60).until(lambda _: self.do("return document.documentElement.dataset.ready"))

    def complaints(self) -> list[str]:
        """What stands in the console."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def text(self, selector: str) -> str:
        return self.do("return document.querySelector(arguments[0]).innerText", selector)  # type: ignore[no-any-return]

    def rows(self) -> list[str]:
        """The rows of the tree that are open to view: level, whether open, and text."""
        return self.do(  # type: ignore[no-any-return]
            """const state = {true: '-', false: '+'};
            return [...document.querySelectorAll('#tree [aria-level]')].map((row) =>
                `${row.ariaLevel} ${state[row.ariaExpanded] ?? ' '} ${row.innerText.replace(/\\s+/g, ' ')}`)"""
        )

    def type(self, selector: str, text: str) -> None:
        script = """const field = document.querySelector(arguments[0]); field.value = arguments[1];
            field.dispatchEvent(new Event(field.type === 'search' ? 'input' : 'change'))"""
        self.do(script, selector, text)

    def press(self, key: str) -> None:
        from selenium.webdriver.common.keys import Keys

        self.driver.switch_to.active_element.send_keys(getattr(Keys, key))

    def settled(self, condition: str) -> bool:
        """Whether something becomes true within a few seconds."""
        from selenium.webdriver.support.ui import WebDriverWait

        return bool(WebDriverWait(self.driver, 20, 0.02).until(lambda _: self.do(f"return {condition}")))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,1000"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield Browser(driver)
    driver.quit()


@pytest.fixture(scope="module")
def told() -> Report:
    found = pipeline.report(files.read(MODEL, weights=False), nodes=True)
    found.model = "bert.ts.onnx"
    return found


@pytest.fixture(scope="module")
def place(told: Report, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of bert."""
    found = tmp_path_factory.mktemp("pages") / "bert.html"
    found.write_bytes(page(told))
    return found


@pytest.fixture
def bert(browser: Browser, place: Path) -> Browser:
    """The window with the page of bert, where nothing is searched for."""
    if browser.driver.current_url == place.as_uri():
        browser.type("#search", "")
        browser.complaints()
    else:
        browser.open(place)
    return browser


@pytest.fixture
def shown(browser: Browser, tmp_path: Path) -> Callable[[Report], Browser]:
    def show(found: Report) -> Browser:
        (tmp_path / "page.html").write_bytes(page(found))
        browser.open(tmp_path / "page.html")
        return browser

    return show


def test_it_opens_in_silence_and_fetches_nothing(bert: Browser) -> None:
    assert bert.settled("document.querySelectorAll('#graphs canvas').length >= 6")
    assert bert.complaints() == []
    assert bert.do("return performance.getEntriesByType('resource').length") == 0


def test_the_answer_stands_at_the_top(bert: Browser, told: Report) -> None:
    before, after = told.before, told.after
    figures = bert.text("#figures")
    assert f"{before.launches} → {after.launches}" in figures
    assert f"{human_bytes(before.bytes)} → {human_bytes(after.bytes)}" in figures
    assert f"{told.nodes_before} → {told.nodes_after}" in figures
    assert bert.text("#verdict").startswith("! Not proved yet")
    assert bert.text("#left").startswith(f"{after.launches} launches are left: {len(told.fusions)} fused nodes take ")
    root = bert.rows()[0]
    assert f"{before.launches} → {after.launches} {human_bytes(before.bytes)} → {human_bytes(after.bytes)}" in root


def test_the_tree_is_walked_by_keys(bert: Browser) -> None:
    bert.do("document.querySelector('#collapse').click()")
    assert [row[:15] for row in bert.rows()] == ["1 + ▸ bert.ts.o"]
    bert.press("ARROW_RIGHT")
    opened = bert.rows()
    assert [row[:8] for row in opened[:2]] == ["1 - ▾ be", "2 + ▸ be"]
    for key in ("ARROW_RIGHT", "ARROW_RIGHT", "ARROW_RIGHT"):
        bert.press(key)
    assert bert.do("return document.activeElement.ariaLevel") == "3"
    bert.press("END")
    assert bert.do("return document.activeElement === document.querySelector('#tree').lastElementChild")
    bert.press("HOME")
    bert.press("ENTER")
    assert bert.text("#details-title") == "bert.ts.onnx"
    assert bert.do("return document.querySelectorAll('#tree [tabindex=\"0\"]').length") == 1
    bert.press("ARROW_LEFT")
    assert len(bert.rows()) == 1


def test_layers_that_are_alike_are_one_row_that_opens(shown: Callable[[Report], Browser]) -> None:
    window = shown(layered(12, 20))
    (layers,) = [row for row in window.rows() if "layers.0-11" in row]
    assert "×12" in layers
    assert "240 → 48" in layers
    window.do(
        "[...document.querySelectorAll('#tree .module')].find((m) => m.innerText === 'layers.0-11')"
        ".closest('[role=row]').querySelector('.twist').click()"
    )
    closed = len(window.rows())
    window.do("document.activeElement.querySelector('.twist').click()")
    assert abs(len(window.rows()) - closed) >= 12


def test_a_fused_node_says_what_it_stands_for(bert: Browser, told: Report) -> None:
    fusion = max(told.fusions, key=lambda found: found.launches_saved)
    bert.type("#search", fusion.node)
    bert.do("document.querySelector('#tree .pill.fused').click()")
    assert bert.text("#details-title") == fusion.op
    facts = bert.text("#facts")
    assert f"by the rule {fusion.rule}" in facts
    assert f"saves\n{fusion.launches_saved} launches" in facts
    assert f"Stands for {len(fusion.replaced)} nodes" in bert.text("#more")
    listed = bert.do("return [...document.querySelectorAll('#more li .mono')].map((e) => e.textContent)")
    assert sorted(listed) == sorted(fusion.replaced)
    assert f"{fusion.rule}(" in bert.text("#more details[open] pre")
    bert.do("document.querySelector('#more li button').click()")
    assert "is now in" in bert.text("#facts")
    assert bert.do("return document.querySelector('#tree [aria-selected=true]') === document.activeElement")
    assert bert.complaints() == []


def test_the_graphs_show_both_sides(bert: Browser) -> None:
    assert bert.settled("document.querySelectorAll('#graphs canvas').length >= 6")
    labels = bert.do("return [...document.querySelectorAll('.canvas')].map((e) => e.getAttribute('aria-label'))")
    assert [label.split(":")[0].split()[-1] for label in labels] == ["before", "after"]
    ink = """const drawn = (canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
        return [...document.querySelectorAll('.canvas')].map((host) =>
            [...host.querySelectorAll('canvas')].some((canvas) => drawn(canvas).some((value) => value > 0)))"""
    assert bert.do(ink) == [True, True]


def test_a_search_finds_the_right_numbers(bert: Browser, told: Report) -> None:
    assert told.nodes is not None
    bert.type("#search", "softmax")
    after = [n for n in told.nodes.after if "softmax" in f"{n.op} {n.name}".lower()]
    fused = [f for f in told.fusions if "SafeSoftmax" in f.kinds]
    before = [n for n in told.nodes.before if "softmax" in f"{n.op} {n.name}".lower()]
    assert after == []
    assert bert.text("#found") == f"{len(fused)} nodes now, {len(before)} before"
    bert.type("#search", "no such thing")
    assert bert.text("#found") == "nothing has that"
    bert.type("#search", "")
    assert bert.text("#found") == ""
    assert len(bert.rows()) > 10


def test_the_order_can_be_changed(shown: Callable[[Report], Browser]) -> None:
    slow = node("b", "MatMul", compute_seconds=1e-3, bound="flops")
    window = shown(report([], [node("a", "Add"), slow, node("c", "Exp")]))
    assert [row.split()[1] for row in window.rows()[1:]] == ["Add", "MatMul", "Exp"]
    window.type("#order", "time")
    assert [row.split()[1] for row in window.rows()[1:]] == ["MatMul", "Add", "Exp"]


def test_5000_nodes_are_not_all_drawn_at_once(shown: Callable[[Report], Browser]) -> None:
    found = layered(50, 100)
    window = shown(found)
    assert f"{found.before.launches:,} → {found.after.launches:,}" in window.text("#figures")
    assert window.do("return document.querySelectorAll('*').length") < 4000
    window.type("#search", OPS[3].lower())
    assert window.text("#found") == "0 nodes now, 500 before"
    assert window.do("return document.querySelectorAll('*').length") < 8000
    assert window.complaints() == []


def test_a_model_without_modules_shows_the_rest_when_asked(shown: Callable[[Report], Browser]) -> None:
    nodes = [node(f"n{i}", "Add", reads=(i - 1,) if i else ()) for i in range(450)]
    window = shown(report([], nodes))
    assert len(window.rows()) == 1 + 200 + 1
    assert "250 more" in window.rows()[-1]
    window.do("document.querySelector('#tree .more').click()")
    assert len(window.rows()) == 1 + 450
    window.do("document.querySelectorAll('#tree [aria-level]')[300].click()")
    assert window.settled("document.querySelector('#graphs figcaption')?.innerText.includes('150 of 450 boxes')")
    assert window.complaints() == []


def test_a_near_miss_leads_to_its_node(shown: Callable[[Report], Browser]) -> None:
    window = shown(layered(4, 20))
    assert "wants a constant 0.5, saw 0.4 gelu.rule:7" in window.text("#misses")
    window.do("document.querySelector('#misses button').click()")
    assert window.text("#details-title") == "Pow"


def test_hostile_names_are_shown_and_do_nothing(shown: Callable[[Report], Browser]) -> None:
    window = shown(hostile())
    for index, name in enumerate(HOSTILE):
        window.do("document.querySelectorAll('#tree [aria-level]')[2 * arguments[0] + 2].click()", index)
        assert window.text("#details-title") == " ".join(map(one_line, name.split("\n")))
        assert window.do("return document.title").endswith("· onnxfuse report")
        assert window.do("return document.querySelectorAll('img:not(.printed), body script[src]').length") == 0
    window.type("#search", "onerror")
    assert window.text("#found").startswith("1 node now")
    assert window.complaints() == []


def test_light_and_dark(bert: Browser) -> None:
    def back(scheme: str) -> str:
        media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        bert.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
        return bert.do("return getComputedStyle(document.body).backgroundColor")  # type: ignore[no-any-return]

    assert back("dark") == "rgb(13, 17, 23)"
    assert back("light") == "rgb(255, 255, 255)"
    assert bert.complaints() == []


def test_it_prints(bert: Browser) -> None:
    assert bert.settled("document.querySelectorAll('#graphs canvas').length >= 6")
    printed = bert.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"]
    assert base64.b64decode(printed).startswith(b"%PDF")
    pictures = bert.do("return [...document.querySelectorAll('.printed')].map((e) => e.src.slice(0, 15))")
    assert pictures == ["data:image/png;"] * 2
    assert bert.complaints() == []


def test_what_can_be_used_has_a_name_and_a_role(bert: Browser) -> None:
    nameless = """return [...document.querySelectorAll('button, input, select, [role]')].filter((e) =>
        !(e.ariaLabel || e.labels?.length || e.innerText?.trim() || e.getAttribute('role') === 'status'
          || ['gridcell'].includes(e.getAttribute('role')))).map((e) => e.outerHTML)"""
    assert bert.do(nameless) == []
    cells = "return [...document.querySelectorAll('[role=gridcell]')]"
    assert bert.do(f"{cells}.every((e) => e.closest('[role=row]'))")
    assert bert.do(
        "return [...document.querySelectorAll('h1, h2, h3')].every((e) => e.innerText.trim() || !e.offsetParent)"
    )


def test_an_estimate_says_what_a_node_runs_from(shown: Callable[[Report], Browser]) -> None:
    base = layered(1, 10)
    launched = Launched("norm.cu row_norm", 96, 128, 0)
    estimate = Estimate("row_norm", 3.21e-6, "bytes", 4096, 1000, 1, 8, kernels=(launched,))
    window = shown(replace(base, fusions=[replace(fusion, estimate=estimate) for fusion in base.fusions]))
    facts = window.text("#facts")
    assert "row_norm: 3.21 µs predicted, bound by memory" in facts
    assert "norm.cu row_norm: 96 × 128 threads" in facts


def test_numbers_read_as_in_the_text_report(browser: Browser) -> None:
    counts = [0, 1, 999, 999.4, 999.6, 1000, 1234, 12_345, 999_499, 999_500, 5.5e6, 1.25e9, 7e12]
    seconds = [0.0, 1e-9, 2.5e-6, 1.2345e-5, 9.994e-4, 9.996e-4, 0.0125, 0.9996, 61.7]
    script = SCRIPT.read_text()
    for name, values, written in (
        ("humanBytes", counts, human_bytes),
        ("humanFlops", counts, human_flops),
        ("humanTime", [1e9 * value for value in seconds], lambda value: human_seconds(value / 1e9)),
    ):
        shown = browser.do(f"{script}\nreturn arguments[0].map({name})", values)
        assert shown == [written(value) for value in values], name
