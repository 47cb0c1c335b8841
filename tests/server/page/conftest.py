"""A browser and a server, with checks of console errors and requests.

``page_helpers`` is imported late: without playwright it skips the tests, which must not happen while loading this file.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from server_helpers import noise

from lookalike import index
from lookalike.cli import main
from lookalike.inference.model import TrainedModel, load
from lookalike.server import create_app

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
TRAINING = ["--backbone", "resnet8-half", "--start", "random", "--no-freeze-backbone", "--size", "32", "--dim", "8"]
TRAINING += ["--crop", "none", "--steps", "12", "--batch-size", "8", "--per-class", "2", "--evaluate-every", "12"]
TRAINING += ["--lr", "0.003", "--workers", "0", "--device", "cpu"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from page_helpers import playwright

    with playwright.sync_playwright() as driver:
        own = Path(driver.chromium.executable_path)
        found = str(own) if own.exists() else next(filter(None, map(shutil.which, BROWSERS)), None)
        if found is None:
            pytest.skip(
                "THE PAGE IS NOT TESTED, there is no browser: playwright install chromium, or apt install chromium"
            )
        launched = driver.chromium.launch(executable_path=found, args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def run(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With weights that differ much from place to place."""
    out = tmp_path_factory.mktemp("runs") / "looking"
    pooling = "{num_prototypes: 4, init: random, keep: 0.2, sharpness: 20}"
    assert main(["train", str(class_folders), "--out", str(out), *TRAINING, "--pooling-settings", pooling]) == 0
    return out


@pytest.fixture(scope="session")
def model(run: Path) -> TrainedModel:
    return load(run, "cpu")


@pytest.fixture(scope="module")
def collection(
    run: Path, model: TrainedModel, class_folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[index.Index]:
    """64 striped pictures, one of them with the worst of labels and file names, and a wide one without label."""
    from page_helpers import NASTY, NASTY_FILE

    files = sorted(class_folders.rglob("*.png"))
    folder = tmp_path_factory.mktemp("odd")
    worst = folder / NASTY_FILE
    shutil.copy(files[0], worst)
    wide = folder / "wide.png"
    noise(96, 48).save(wide)
    items = [index.file_item(file, label=file.parent.name, metadata={"n": int(file.stem)}) for file in files[1:]]
    items += [index.file_item(worst)._replace(label=NASTY, metadata={"note": NASTY})]
    items += [index.file_item(wide, label="")._replace(id="z-wide")]  # the last: the others are of one size
    with index.create(folder / "odd.idx", run=run) as idx:
        idx.add(items, model.embed([*files[1:], worst, wide]))
        yield idx


@pytest.fixture(scope="module")
def address(collection: index.Index, model: TrainedModel) -> Iterator[str]:
    from page_helpers import serving

    with serving(create_app(collection, model)) as url:
        yield url


@pytest.fixture
def opening(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens pages; nothing may go wrong there but what ``allowed`` names, and nothing be asked of others."""
    from page_helpers import PATIENCE, expect

    contexts: list[Any] = []
    problems: list[str] = []

    def opened(
        url: str = address, *, allowed: str = "", ready: bool = True, before: Any = None, **settings: Any
    ) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        page = context.new_page()

        def console(message: Any) -> None:
            if message.type in ("error", "warning") and not (allowed and re.search(allowed, message.text)):
                problems.append(f"{message.type}: {message.text}")

        page.on("console", console)
        page.on("pageerror", lambda error: problems.append(f"uncaught: {error}"))
        page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))

        def request(asked: Any) -> None:
            parts = urlsplit(asked.url)
            if parts.scheme not in ("blob", "data") and parts.netloc != urlsplit(url).netloc:
                problems.append(f"a request to {asked.url}")

        context.on("request", request)
        if before is not None:
            before(page)
        page.goto(url)
        if ready:
            expect(page.locator("#items .card:not(.waiting)").first).to_be_attached()
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not problems


@pytest.fixture
def page(opening: Callable[..., Any]) -> Any:
    return opening()
