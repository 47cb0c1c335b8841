"""The map in a browser: frame times of panning and zooming, and the time until it is drawn.

    python perf/map.py [--pictures 100000] [--labels 60] [--layout pca] [--steps 60] [--json]

An index of random clusters is served without picture files; Chromium runs without a window or a GPU. A frame is
the time between two animation frames of the page while the mouse drags or zooms. ``drawing`` is the part in which the
page's script draws. Other work on the machine counts: the load is printed.
"""

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from playwright.sync_api import Page, sync_playwright

from lookalike import index
from lookalike.index.layout import Choice
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder
from lookalike.server import create_app

FLAGS = ["--headless", "--no-sandbox", "--disable-gpu"]
DIM = 64
BATCH = 5000
SEED = 0
LOG_FRAMES = """() => {
  const draw = window.frames_logged = { gaps: [], drawing: [] };
  let last = performance.now();
  const original = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (callback) => original((now) => {
    const start = performance.now();
    callback(now);
    if (draw.on) draw.drawing.push(performance.now() - start);
  });
  const tick = (now) => { if (draw.on) draw.gaps.push(now - last); last = now; original(tick); };
  original(tick);
}"""


def fill(idx: index.Index, pictures: int, labels: int) -> None:
    """Add random clusters, one per label."""
    rng = np.random.default_rng(SEED)
    centres = rng.normal(size=(labels, idx.dim))
    for start in range(0, pictures, BATCH):
        label = rng.integers(0, labels, min(BATCH, pictures - start))
        vectors = centres[label] + rng.normal(size=(len(label), idx.dim))
        names = [f"{number:032x}" for number in range(start, start + len(label))]
        items = []
        for name, number in zip(names, label.tolist(), strict=True):
            items.append(index.Item(name, f"/nowhere/{name[-8:]}.jpg", f"label {number:02}"))
        idx.add(items, vectors.astype(np.float32))


@contextmanager
def serving(idx: index.Index, model: TrainedModel, layout: Choice) -> Iterator[str]:
    """Serve an index in a thread."""
    server = uvicorn.Server(uvicorn.Config(create_app(idx, model, layout=layout), port=0, log_config=None, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


def describe(values: list[float]) -> dict[str, float]:
    """Median, 95th percentile and largest value."""
    return {"median": float(np.median(values)), "p95": float(np.percentile(values, 95)), "most": max(values)}


def measure(page: Page, url: str, pictures: int, steps: int) -> dict[str, Any]:
    """Open the map, drag it and zoom it."""
    page.set_default_timeout(600_000)
    page.goto(url)
    page.locator("#items .card:not(.waiting)").first.wait_for(state="attached")
    page.evaluate(LOG_FRAMES)
    started = time.perf_counter()
    page.locator("#tab-map").click()
    page.wait_for_function(f"document.getElementById('map-status').textContent.startsWith('{pictures:,} ')")
    report: dict[str, Any] = {"seconds until the map is there": time.perf_counter() - started}
    box = page.locator("#map-canvas").bounding_box()
    assert box is not None
    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    def logged(name: str, act: Any) -> None:
        page.evaluate("() => Object.assign(window.frames_logged, { gaps: [], drawing: [], on: true })")
        act()
        found = page.evaluate("() => { window.frames_logged.on = false; return window.frames_logged; }")
        report[name] = {"frame ms": describe(found["gaps"]), "drawing ms": describe(found["drawing"])}

    def zoom() -> None:
        page.keyboard.down("Control")
        for step in range(steps):
            page.mouse.wheel(0, -20 if step < steps / 2 else 20)
        page.keyboard.up("Control")

    def drag() -> None:
        page.mouse.down()
        for step in range(steps):
            page.mouse.move(middle[0] + 3 * step, middle[1] + step)
        page.mouse.up()

    def hover() -> None:
        for step in range(steps):
            page.mouse.move(middle[0] + step, middle[1] + step)

    page.mouse.move(*middle)
    logged("zoom", zoom)
    page.locator("#zoom-in").click()
    page.mouse.move(*middle)
    logged("drag at 1.5 x", drag)
    logged("hover", hover)
    return report


def main() -> None:
    """Print the times of one map."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=100_000)
    parser.add_argument("--labels", type=int, default=60)
    parser.add_argument("--layout", choices=["auto", "umap", "tsne", "pca"], default="pca")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    settings = parser.parse_args()
    model = TrainedModel(Embedder("resnet8-half", dim=DIM, pooling="average"), "torch")
    with tempfile.TemporaryDirectory() as folder, index.create(Path(folder) / "map.idx", model, engine="torch") as idx:
        fill(idx, settings.pictures, settings.labels)
        with serving(idx, model, settings.layout) as url, sync_playwright() as driver:
            own = Path(driver.chromium.executable_path)
            found = str(own) if own.exists() else shutil.which("chromium") or shutil.which("google-chrome")
            browser = driver.chromium.launch(executable_path=found, args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 900}, bypass_csp=True)
            report = measure(page, url, settings.pictures, settings.steps)
            browser.close()
    report = {"pictures": settings.pictures, "load": os.getloadavg()[0], **report}
    if settings.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
