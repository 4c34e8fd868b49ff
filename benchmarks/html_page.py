"""How large the page of a report is, and how soon it can be used, in headless Chromium.

For each model: nodes before and after, bytes of the page, milliseconds until its scripts are done and keys and clicks
are answered, until the graphs are drawn, and what choosing a row and searching take up to the next frame; the median
of several openings, by the page's own clock.  Without a model: bert, llama, and 5,145 nodes in 105 blocks.

Needs selenium, chromium and chromedriver.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnxfuse import pipeline
from onnxfuse.model import files
from onnxfuse.reporting.html.page import page

from .synthetic import blocks

ROOT = Path(__file__).resolve().parent.parent
BLOCKS = 105

FRAME = """const told = arguments[arguments.length - 1]; const begun = performance.now();
(%s);
requestAnimationFrame(() => requestAnimationFrame(() => told(performance.now() - begun)));"""
READY = """const told = arguments[0]; const page = document.documentElement;
(function wait() { page.dataset.ready ? told(page.dataset.ready) : setTimeout(wait, 5) })()"""
DRAWN = """const told = arguments[0]; const canvases = () => document.querySelectorAll('#graphs canvas').length;
(function wait() { canvases() >= 3 ? told(performance.now()) : setTimeout(wait, 5) })()"""
CHOOSE = FRAME % "document.querySelector('#tree .pill.fused, #tree .op').click()"
SEARCH = FRAME % "((field) => { field.value = 'matmul'; field.dispatchEvent(new Event('input')); })(search)"


@contextmanager
def browser() -> Iterator[Any]:
    """A window of 1,400 by 1,000."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for argument in ("headless", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1400,1000"):
        options.add_argument(f"--{argument}")
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def opened(driver: Any, place: Path) -> tuple[float, ...]:
    """Milliseconds of one opening: ready, drawn, choose, search."""
    driver.get(place.as_uri())
    ready = float(driver.execute_async_script(READY))  # a busy machine gives the page back before its scripts are done
    return ready, *(float(driver.execute_async_script(script)) for script in (DRAWN, CHOOSE, SEARCH))


def measure(driver: Any, model: Path, place: Path, rounds: int) -> str:
    """A line about the page of a model."""
    found = pipeline.report(files.read(model, weights=False), nodes=True)
    found.model = model.name
    content = page(found)
    place.write_bytes(content)
    times = zip(*(opened(driver, place) for _ in range(rounds)), strict=True)
    figures = " ".join(f"{statistics.median(each):7.0f}" for each in times)
    return f"{model.name:24} {found.nodes_before:6,} {found.nodes_after:6,} {len(content) / 1000:8.0f} kB {figures}"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, browser() as driver:
        models = arguments.models
        if not models:
            large = Path(folder) / "blocks.onnx"
            blocks(large, BLOCKS)
            models = [ROOT / "models" / "bert.ts.onnx", ROOT / "models" / "llama.dynamo.onnx", large]
        print(f"{'model':24} {'before':>6} {'after':>6} {'page':>11}   ready   drawn  choose  search  (ms)")
        for model in models:
            print(measure(driver, model, Path(folder) / "page.html", arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
