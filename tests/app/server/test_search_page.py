"""The page in a real browser, on a real server, held against what the index and the model say themselves."""

import json
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image
from server_pictures import encoded, noise

from lookalike.app import main
from lookalike.app.server import Keys, create_app
from lookalike.retrieval import index
from lookalike.retrieval.index.reranked import METHODS
from lookalike.trained import TrainedModel, load

uvicorn = pytest.importorskip("uvicorn", reason="the page is served by uvicorn")
playwright = pytest.importorskip("playwright.sync_api", reason="THE PAGE IS NOT TESTED: pip install playwright")
expect = playwright.expect
PATIENCE = 20_000  # milliseconds: machines may be busy
expect.set_options(timeout=PATIENCE)

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
FLAGS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
TRAINING = ["--backbone", "resnet8-half", "--start", "random", "--no-freeze-backbone", "--size", "32", "--dim", "8"]
TRAINING += ["--crop", "none", "--steps", "12", "--batch-size", "8", "--per-class", "2", "--evaluate-every", "12"]
TRAINING += ["--lr", "0.003", "--workers", "0", "--device", "cpu"]
READ = "a key for looking at it"
# A label that would run, if it ever became HTML, and that a filter must quote.
NASTY = """"><img src=x onerror="document.title='owned'">, (a) = 'b' \\ c"""
NASTY_FILE = "<img src=x onerror=alert(1)>.png"
KEPT = "sessionStorage.getItem('lookalike-key')"

# ---------------------------------------------------------------- a browser, a server, and somebody who watches both


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
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


@pytest.fixture(scope="module")
def run(class_folders: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With weights that differ much from place to place."""
    out = tmp_path_factory.mktemp("runs") / "looking"
    pooling = "{num_prototypes: 4, init: random, keep: 0.2, sharpness: 20}"
    assert main(["train", str(class_folders), "--out", str(out), *TRAINING, "--pooling-settings", pooling]) == 0
    return out


@pytest.fixture(scope="module")
def model(run: Path) -> TrainedModel:
    return load(run, "cpu")


@pytest.fixture(scope="module")
def collection(
    run: Path, model: TrainedModel, class_folders: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[index.Index]:
    """64 striped pictures, one of them with the worst of labels and file names, and a wide one without label."""
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


@contextmanager
def serving(app: Any) -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def address(collection: index.Index, model: TrainedModel) -> Iterator[str]:
    with serving(create_app(collection, model)) as url:
        yield url


@pytest.fixture
def opening(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens pages; nothing may go wrong there but what ``allowed`` names, and nothing be asked of others."""
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


# ---------------------------------------------------------------- what one does, and what one sees


def hits_shown(page: Any) -> list[tuple[str, str]]:
    """Labels and distances, once the search is over."""
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    cards = page.locator("#hits .card:not(.waiting)").all()
    return [(card.locator(".label").inner_text(), card.locator(".distance").inner_text()) for card in cards]


def expected(idx: index.Index, vector: np.ndarray, k: int = 12, *, where: str | None = None, without: str = "") -> Any:
    found = idx.search(vector[None], k + 1, where=where)[0]
    return as_shown([hit for hit in found if hit.item.id != without][:k])


def as_shown(hits: list[index.Hit]) -> list[tuple[str, str]]:
    return [(hit.item.label or "no label", f"{hit.distance:.3f}") for hit in hits]


def striped(idx: index.Index, place: int = 5) -> index.Item:
    return idx.items(where="label=class3")[place]


def search_with(page: Any, item: index.Item) -> list[tuple[str, str]]:
    page.goto(f"{page.url.partition('#')[0]}#id={item.id}")
    expect(page.locator("#query-title")).to_have_text(item.label or "no label")
    return hits_shown(page)


def searched(page: Any, act: Callable[[], Any]) -> dict[str, str]:
    """The fields of the search that ``act`` leads to."""
    with page.expect_request("**/search") as asked:
        act()
    text = asked.value.post_data_buffer.decode("latin-1")
    return dict(re.findall(r'name="(\w+)"\r\n\r\n(.*?)\r\n--', text, re.DOTALL))


def upload_of(picture: bytes, name: str = "mine.png", kind: str = "image/png") -> dict[str, Any]:
    return {"name": name, "mimeType": kind, "buffer": picture}


CARRY = """([event, bytes, name, target]) => {
  const carried = new DataTransfer();
  carried.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
  const more = { bubbles: true, cancelable: true };
  if (event === "paste") document.dispatchEvent(new ClipboardEvent("paste", { ...more, clipboardData: carried }));
  else for (const step of ["dragenter", "dragover", "drop"])
    document.querySelector(target).dispatchEvent(new DragEvent(step, { ...more, dataTransfer: carried }));
}"""


# ---------------------------------------------------------------- tests


def test_it_opens_with_the_collection(page: Any) -> None:
    expect(page.locator("#summary")).to_have_text("65 pictures, 9 labels")
    expect(page.locator("#collection-status")).to_contain_text("48 of 65 pictures")
    page.locator("#more-items").click()
    expect(page.locator("#items .card")).to_have_count(65)
    expect(page.locator("#more-items")).to_be_hidden()
    names = page.locator("#items .picture").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
    assert len(set(names)) == 65
    first = page.locator("#items img").first
    assert first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 32
    page.locator("#tab-results").click()
    expect(page.locator("#notice")).to_contain_text("Choose, drop or paste")


def test_a_picture_of_ones_own_chosen_dropped_and_pasted(
    page: Any, collection: index.Index, model: TrainedModel
) -> None:
    for seed, way in enumerate(("choose", "drop", "paste")):
        picture, name = noise(40, 30, seed), f"{way}.png"
        with page.expect_response("**/search"):
            if way == "choose":
                with page.expect_file_chooser() as chooser:
                    page.locator("#choose").click()
                chooser.value.set_files(upload_of(encoded(picture), name))
            else:
                page.evaluate(CARRY, [way, list(encoded(picture)), name, "#views"])
        expect(page.locator("#query-title")).to_have_text(name)
        assert hits_shown(page) == expected(collection, model.embed(picture)[0])
        expect(page.locator("#status")).to_have_text(re.compile(r"^12 results, nearest: .+ at 0\.\d{3}, \d+ ms$"))
        assert page.locator("#query-picture").evaluate("image => image.decode().then(() => image.naturalWidth)") == 40
        assert page.locator("body.dragging").count() == 0


def test_a_picture_of_the_collection_more_like_it_and_back(page: Any, collection: index.Index) -> None:
    item = collection.items()[7]
    page.locator("#items .picture").nth(7).click()
    first = expected(collection, collection.vectors([item.id])[0], without=item.id)
    assert hits_shown(page) == first
    expect(page.locator("#tab-results")).to_have_attribute("aria-selected", "true")
    following = collection.search(collection.vectors([item.id]), 4)[0][3].item
    page.locator("#hits .more").nth(2).click()
    expect(page.locator("#query-detail")).to_have_text(Path(following.path).name)
    second = expected(collection, collection.vectors([following.id])[0], without=following.id)
    expect(page.locator("#hits .distance").first).to_have_text(second[0][1])
    assert hits_shown(page) == second
    page.go_back()
    expect(page.locator("#hits .distance").first).to_have_text(first[0][1])
    assert hits_shown(page) == first
    assert f"id={item.id}" in page.url  # can be sent to somebody
    page.go_back()
    expect(page.locator("#collection")).to_be_visible()
    expect(page.locator("#query")).to_be_hidden()


def test_the_number_of_results(page: Any, collection: index.Index) -> None:
    search_with(page, striped(collection))
    for typed, shown, value, said in (
        ("5", 5, "5", ""),
        ("500", 64, "200", "at most 200"),
        ("0", 1, "1", "at least 1"),
        ("", 12, "12", ""),
    ):
        page.locator("#k").fill(typed)
        page.locator("#k").blur()
        expect(page.locator("#hits .card:not(.waiting)")).to_have_count(shown)
        assert page.locator("#k").input_value() == value
        expect(page.locator("#k-help")).to_have_text(said)
    page.goto(f"{page.url.partition('#')[0]}#id={striped(collection).id}&k=500")
    expect(page.locator("#k-help")).to_have_text("at most 200")
    page.go_back()
    expect(page.locator("#k")).to_have_value("12")
    expect(page.locator("#k-help")).to_be_empty()


def test_filter_by_label(page: Any, collection: index.Index) -> None:
    item = striped(collection)
    search_with(page, item)
    page.locator("#label").select_option(label="class5 (8)")
    expect(page.locator("#hits .card:not(.waiting)")).to_have_count(8)
    vector = collection.vectors([item.id])[0]
    assert hits_shown(page) == expected(collection, vector, where="label=class5")
    expect(page.locator("#status")).to_contain_text("8 results with the label class5")
    page.locator("#tab-collection").click()
    expect(page.locator("#items .card:not(.waiting)")).to_have_count(8)
    page.locator("#label").select_option(label="no label (1)")
    expect(page.locator("#hits .card:not(.waiting)")).to_have_count(1)
    expect(page.locator("#status")).to_contain_text("1 result without a label, nearest: ")
    page.locator("#hits .more").click()
    expect(page.locator("#notice-words")).to_have_text("No picture without a label to compare with.")
    page.go_back()
    page.locator("#label").select_option(label="All labels")
    expect(page.locator("#hits .card:not(.waiting)")).to_have_count(12)


def test_re_ranking(page: Any, collection: index.Index) -> None:
    item = striped(collection)
    vector = collection.vectors([item.id])

    def wanted(method: str, where: str | None = None) -> list[tuple[str, str]]:
        return as_shown(index.search_reranked(collection, vector, 12, where, method, without=item.id)[0])

    control = page.get_by_label("Re-ranking")
    assert control.locator("option").evaluate_all("all => all.map(one => one.value)") == list(METHODS)
    assert len({tuple(wanted(method)) for method in METHODS}) == len(METHODS), "or one could stand for another"
    plain = search_with(page, item)
    assert plain == wanted("none")
    expect(page.locator("#rerank-help")).to_be_hidden()
    for method in METHODS[1:]:
        with page.expect_response("**/search"):
            control.select_option(method)
        assert hits_shown(page) == wanted(method)
        expect(page.locator("#status")).to_contain_text("12 results, re-ranked, first: ")
        expect(page.locator("#rerank-help")).to_have_text(re.compile(r"^\w.+\. Distances stay those to the query\.$"))
        assert f"rerank={method}" in page.url
    page.reload()  # as a colleague would open it
    expect(control).to_have_value("reciprocal")
    assert hits_shown(page) == wanted("reciprocal")
    with page.expect_response("**/search"):
        page.locator("#label").select_option(label="class5 (8)")
    assert hits_shown(page) == wanted("reciprocal", "label=class5")
    with page.expect_response("**/search"):
        page.go_back()
    expect(page.locator("#label")).to_have_value("")
    assert hits_shown(page) == wanted("reciprocal")
    control.focus()
    with page.expect_response("**/search"):
        page.keyboard.press("Home")  # the first of a list, by keyboard
    expect(control).to_have_value("none")
    assert hits_shown(page) == plain
    assert "rerank" not in page.url
    with page.expect_response("**/search"):
        page.go_back()
    expect(control).to_have_value("reciprocal")
    assert hits_shown(page) == wanted("reciprocal")
    page.goto(f"{page.url.partition('#')[0]}#id={item.id}&rerank=magic")
    expect(control).to_have_value("none")
    expect(page.locator("#status")).to_contain_text("12 results, nearest: ")
    assert hits_shown(page) == plain


def test_what_people_write_stays_text(page: Any, collection: index.Index) -> None:
    """A label and a file name that are HTML and a filter's syntax, wherever they are shown."""
    (worst,) = [item for item in collection.items() if item.label == NASTY]
    search_with(page, striped(collection))
    page.locator("#label").select_option(label=f"{NASTY} (1)")
    expect(page.locator("#hits .card:not(.waiting)")).to_have_count(1)
    assert hits_shown(page)[0][0] == NASTY
    page.locator("#hits .picture").click()
    expect(page.locator("#viewer-title")).to_have_text(NASTY)
    expect(page.locator("#viewer-facts")).to_contain_text(NASTY_FILE)
    expect(page.locator("#viewer-facts")).to_contain_text(NASTY)
    page.locator("#viewer-more").click()
    expect(page.locator("#query-title")).to_have_text(NASTY)
    expect(page.locator("#query-detail")).to_have_text(NASTY_FILE)
    # it is alone with its label
    expect(page.locator("#notice")).to_contain_text(NASTY)
    expect(page.locator("#status")).to_have_text("No results")
    page.locator("#notice-action").click()
    assert hits_shown(page) == expected(collection, collection.vectors([worst.id])[0], without=worst.id)
    page.locator("#tab-map").click()
    expect(page.locator("#map-legend")).to_contain_text(NASTY)
    assert page.title() == "lookalike"
    assert page.locator("img[src='x'], img[onerror]").count() == 0


OPACITIES = """(canvas, [rows, columns]) => {
  const { data, width, height } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const [sums, counts] = [Array(rows * columns).fill(0), Array(rows * columns).fill(0)];
  for (let y = 0; y < height; y += 1) for (let x = 0; x < width; x += 1) {
    const field = Math.floor((y * rows) / height) * columns + Math.floor((x * columns) / width);
    sums[field] += data[4 * (y * width + x) + 3];
    counts[field] += 1;
  }
  return sums.map((sum, field) => sum / counts[field]);
}"""


def opacities(page: Any, canvas: str, rows: int, columns: int) -> np.ndarray:
    """Of a canvas, the means over rows x columns fields."""
    return np.array(page.locator(canvas).evaluate(OPACITIES, [rows, columns])).reshape(rows, columns)


VEIL = ((0, 0.35, 0.7, 1), (0.82, 0.62, 0.26, 0.14))  # parts of the largest weight, and how much they hide


def test_weights_as_a_veil(page: Any, collection: index.Index, model: TrainedModel) -> None:
    item = striped(collection)
    search_with(page, item)
    assert page.locator(".veil:visible").count() == 0
    page.locator("#weights").check()
    expect(page.locator("#query-weights")).to_be_visible()
    expect(page.locator("#legend")).to_be_visible()
    expect(page.locator("#legend p").first).to_have_text(re.compile(r"no weight\s+the largest"))
    expect(page.locator("#legend")).to_contain_text("dark border is never seen by the model")
    rows, columns = model.explain(item.path).grid.shape
    expect(page.locator("#legend-grid")).to_contain_text(f"{rows} \u00d7 {columns} places")
    expect(page.locator("#hits .veil").nth(3)).to_be_visible()
    third = collection.search(collection.vectors([item.id]), 5)[0][4].item
    for shown, canvas in ((item, "#query-weights"), (third, "#hits li:nth-child(4) .veil")):
        weights = model.explain(shown.path).weights  # of 32 x 32 pixels
        assert weights.max() > 2 * weights.min()
        wanted = 255 * np.interp(weights / weights.max(), *VEIL)
        veil = opacities(page, canvas, 8, 8)
        assert np.abs(veil - wanted.reshape(8, 4, 8, 4).mean((1, 3))).max() < 16
        assert np.ptp(veil) > 40
    page.locator("#hits .picture").first.click()
    expect(page.locator("#viewer-weights")).to_be_visible()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#viewer-facts")).to_contain_text("2 of 12")
    page.keyboard.press("Escape")
    page.locator("#weights").uncheck()
    assert page.locator(".veil:visible").count() == 0


def test_a_model_without_weights_has_no_switch(opening: Callable[..., Any]) -> None:
    def without(page: Any) -> None:
        def answer(route: Any) -> None:
            card = route.fetch().json()
            route.fulfill(json={**card, "has_weights": False, "figures": None})

        page.route("**/model", answer)

    page = opening(before=without)
    expect(page.locator("#weights-control")).to_be_hidden()
    page.locator("#open-card").click()
    expect(page.locator("#card-note")).to_have_text("No figures were kept with this model.")


def test_a_region_by_dragging(page: Any, collection: index.Index, model: TrainedModel) -> None:
    (wide,) = [item for item in collection.items() if item.path.endswith("wide.png")]
    search_with(page, wide)
    box = page.locator("#query-picture").bounding_box()
    assert box["width"] == pytest.approx(2 * box["height"], rel=0.02)

    def point(x: float, y: float) -> tuple[float, float]:
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    def drag(start: tuple[float, float], end: tuple[float, float]) -> None:
        page.mouse.move(*point(*start))
        page.mouse.down()
        page.mouse.move(*point(*end), steps=3)
        page.mouse.up()

    fields = searched(page, lambda: drag((0.25, 0.5), (0.75, 1.0)))
    region = [float(part) for part in fields["crop"].split(",")]
    assert region == pytest.approx([0.25, 0.5, 0.5, 0.5], abs=0.01)
    assert fields["id"] == wide.id
    left, top, width, height = region
    sides = np.array([left * 96, top * 48, (left + width) * 96, (top + height) * 48]).round().astype(int)
    with Image.open(wide.path) as picture:
        part = picture.crop(tuple(sides.tolist()))
    expect(page.locator("#hits .distance").first).not_to_be_empty()
    assert hits_shown(page) == expected(collection, model.embed(part)[0], without=wide.id)
    # inside it moves, at a corner it is sized
    moved = searched(page, lambda: drag((0.5, 0.75), (0.3, 0.55)))["crop"]
    assert [float(part) for part in moved.split(",")] == pytest.approx([0.05, 0.3, 0.5, 0.5], abs=0.01)
    sized = searched(page, lambda: drag((0.05, 0.3), (0.15, 0.1)))["crop"]
    assert [float(part) for part in sized.split(",")] == pytest.approx([0.15, 0.1, 0.4, 0.7], abs=0.015)
    # a slip of the hand is no region
    drag((0.9, 0.9), (0.91, 0.91))
    expect(page.locator("#region")).to_have_attribute("aria-label", re.compile(r"40 by 70 per cent"))
    assert "crop" not in searched(page, lambda: page.locator("#whole").click())
    expect(page.locator("#region")).to_be_hidden()


def test_a_region_by_keyboard(page: Any, collection: index.Index) -> None:
    search_with(page, striped(collection))
    page.locator("#weights").check()
    page.locator("#crop").press("Enter")
    expect(page.locator("#region")).to_be_focused()
    for key in ("ArrowRight", "ArrowUp", "Shift+ArrowRight", "Shift+ArrowRight", "Shift+ArrowUp"):
        page.keyboard.press(key)
    expect(page.locator("#search-region")).to_be_visible()
    region = "0.2200,0.1800,0.6400,0.5800"
    with page.expect_request(
        lambda asked: asked.url.endswith("/explain") and region.encode() in asked.post_data_buffer
    ):
        fields = searched(page, lambda: page.keyboard.press("Enter"))
    assert fields["crop"] == region
    expect(page.locator("#search-region")).to_be_hidden()
    expect(page.locator("#query-weights")).to_be_visible()
    assert opacities(page, "#query-weights", 8, 8)[7].min() > 190  # outside of the region there is no weight
    for _ in range(12):
        page.keyboard.press("ArrowLeft")
    expect(page.locator("#region")).to_have_attribute("aria-label", re.compile(" 0 from the left"))
    assert "crop" not in searched(page, lambda: page.keyboard.press("Escape"))
    expect(page.locator("#crop")).to_be_focused()


def opened_map(page: Any) -> tuple[list[dict[str, Any]], np.ndarray, dict[str, float]]:
    """The points, where they are on the screen, and the frame of the map."""
    points = page.evaluate("fetch('map').then(answer => answer.json())")["points"]
    assert len(points) == 65
    page.locator("#tab-map").click()
    expect(page.locator("#map-status")).to_have_text("65 pictures")
    box = page.locator("#map-canvas").bounding_box()
    places = np.array([[point["x"], point["y"]] for point in points])
    low, high = places.min(0), places.max(0)
    size = np.array([box["width"], box["height"]])
    scale = min((size - 36) / (high - low))
    return points, (places - (low + high) / 2) * scale + size / 2 + np.array([box["x"], box["y"]]), box


def test_the_map(page: Any, collection: index.Index) -> None:
    points, pixels, box = opened_map(page)
    apart = np.linalg.norm(pixels[:, None] - pixels[None], axis=2) + 1e9 * np.eye(65)
    lonely = int(apart.min(1).argmax())
    where = (pixels[lonely, 0], pixels[lonely, 1])
    page.mouse.move(where[0] + 3, where[1] - 3)
    expect(page.locator("#map-tip")).to_be_visible()
    expect(page.locator("#map-tip p")).to_have_text(points[lonely]["label"] or "no label")
    assert points[lonely]["id"] in page.locator("#map-tip img").get_attribute("src")
    assert page.locator("#map-tip img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    page.mouse.move(box["x"] + 2, box["y"] - 30)
    expect(page.locator("#map-tip")).to_be_hidden()
    assert searched(page, lambda: page.mouse.click(*where))["id"] == points[lonely]["id"]
    assert hits_shown(page)
    from_map = page.locator("#query figcaption").inner_text()
    (item,) = collection.get([points[lonely]["id"]])
    assert item is not None
    expect(page.locator("#query-detail")).to_have_text(item.file.name)
    page.locator("#label").select_option(label=f"{item.label or 'no label'} ({collection.labels()[item.label]})")
    page.locator("#tab-collection").click()
    page.get_by_label(f"Search with {item.label or 'no label'}, {item.file.name}", exact=True).click()
    assert hits_shown(page)
    assert page.locator("#query figcaption").inner_text() == from_map


def test_the_map_zoomed_and_dragged(page: Any) -> None:
    points, pixels, box = opened_map(page)
    middle = np.array([box["x"] + box["width"] / 2, box["y"] + box["height"] / 2])
    chosen = int(np.linalg.norm(pixels - middle, axis=1).argmin())
    x, y = pixels[chosen].tolist()
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -280)  # e^1.4 = 4 times
    page.keyboard.up("Control")
    expect(page.locator("#map-canvas")).to_have_class(re.compile("zoomed"))

    def pointed(at: tuple[float, float]) -> str:
        page.mouse.move(box["x"] + 1, box["y"] - 40)
        expect(page.locator("#map-tip")).to_be_hidden()
        page.mouse.move(*at)
        expect(page.locator("#map-tip")).to_be_visible()
        return str(page.locator("#map-tip img").get_attribute("src").split("/")[1])

    assert pointed((x, y)) == points[chosen]["id"]  # what is under the pointer stays there
    page.mouse.down()
    page.mouse.move(x + 25, y - 20, steps=3)
    page.mouse.move(x + 50, y - 40, steps=3)
    page.mouse.up()
    expect(page.locator("#map")).to_be_visible()  # to drag is not to search
    assert pointed((x + 50, y - 40)) == points[chosen]["id"]
    page.locator("#zoom-reset").click()
    expect(page.locator("#map-canvas")).not_to_have_class(re.compile("zoomed"))
    assert pointed((x, y)) == points[chosen]["id"]


PIXELS = """(canvas, places) => {
  const dense = canvas.width / canvas.getBoundingClientRect().width;
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  return places.map(([x, y]) => [...copy.getImageData(Math.round(x * dense), Math.round(y * dense), 1, 1).data]);
}"""
FRAMES = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def test_the_maps_key_when_there_are_many_labels(opening: Callable[..., Any]) -> None:
    """Those that have most pictures are named; every point has the colour that the key gives it."""
    names: dict[str, str] = {}

    def many(page: Any) -> None:
        def answer(route: Any) -> None:
            content = route.fetch().json()
            for place, point in enumerate(content["points"]):  # 12 labels with 3 pictures, 15 with one or two
                point["label"] = f"often {place % 12:02}" if place < 36 else f"rare {place % 15:02}"
                names[point["id"]] = point["label"]
            route.fulfill(json=content)

        page.route("**/map", answer)

    page = opening(before=many)
    points, pixels, box = opened_map(page)
    assert len(set(names.values())) == 27
    keys = page.locator("#map-legend li")
    assert keys.all_inner_texts() == [*(f"often {place:02}" for place in range(12)), "15 other labels"]
    middle = "all => all.map(one => [...one.getContext('2d').getImageData(12, 12, 1, 1).data].slice(0, 3))"
    colours = [tuple(colour) for colour in page.locator("#map-legend canvas").evaluate_all(middle)]
    assert len(set(colours)) == 13
    assert len(set(colours[-1])) == 1, "others are grey"
    page.evaluate(FRAMES)
    apart = np.linalg.norm(pixels[:, None] - pixels[None], axis=2) + 1e9 * np.eye(65)
    alone = [place for place in range(65) if apart[place].min() > 12]
    seen = set()
    places = (pixels[alone] - [box["x"], box["y"]]).tolist()
    for place, drawn in zip(alone, page.locator("#map-canvas").evaluate(PIXELS, places), strict=True):
        label = names[points[place]["id"]]
        wanted = colours[-1] if label.startswith("rare") else colours[int(label[-2:])]
        assert np.abs(np.array(drawn[:3]) - wanted).max() <= 3
        seen.add(label.split()[0])
    assert seen == {"often", "rare"}


def test_the_map_marks_the_query_and_its_results(page: Any, collection: index.Index, upload: bytes) -> None:
    item = striped(collection)
    points, pixels, box = opened_map(page)
    place = [point["id"] for point in points].index(item.id)
    x, y = (pixels[place] - [box["x"], box["y"]]).tolist()
    rings = page.locator("#map-legend .ring")
    expect(rings).to_have_count(0)

    def hairs() -> int:
        """Ink on the four hairs around the point of the item, outside of any ring."""
        page.evaluate(FRAMES)
        far = 4.5 + 3.5 + 3.5
        around = [[x + far, y], [x - far, y], [x, y + far], [x, y - far]]
        return sum(pixel[3] > 100 for pixel in page.locator("#map-canvas").evaluate(PIXELS, around))

    before = hairs()
    assert before < 4
    search_with(page, item)
    page.locator("#tab-map").click()
    assert page.locator("#map-legend li:has(.ring)").all_inner_texts() == ["the query", "its results"]
    assert hairs() == 4
    page.locator("#file").set_input_files(upload_of(upload))  # which is not on the map
    assert len(hits_shown(page)) == 12
    page.locator("#tab-map").click()
    expect(page.locator("#map-legend li:has(.ring)")).to_have_text(["its results"])
    assert hairs() == before


def test_the_maps_help_speaks_of_what_one_has(opening: Callable[..., Any], page: Any) -> None:
    touch = {"has_touch": True, "is_mobile": True}
    for each, fingers in (
        (page, False),
        (opening(viewport={"width": 375, "height": 740}), True),
        (opening(viewport={"width": 1024, "height": 740}, **touch), True),
    ):
        each.locator("#tab-map").click()
        said = each.locator("#map-help").inner_text()
        assert ("Tap a point" in said) == fingers
        assert any(word in said for word in ("Hover", "arrow keys", "Page Down")) != fingers


def test_a_long_label_breaks_where_its_words_end(opening: Callable[..., Any]) -> None:
    name = "Red_winged_Blackbird"

    def renamed(page: Any) -> None:
        def answer(route: Any) -> None:
            content = route.fetch().json()
            content["items"][0]["label"] = name
            route.fulfill(json=content)

        page.route("**/items?*", answer)

    page = opening(before=renamed, viewport={"width": 375, "height": 740})
    label = page.locator("#items .label").first
    expect(label).to_have_text(name)
    lines = label.evaluate(
        """one => {
          const lines = new Map();
          for (const node of one.childNodes) for (let place = 0; place < (node.data ?? "").length; place += 1) {
            const range = document.createRange();
            range.setStart(node, place);
            range.setEnd(node, place + 1);
            const { top } = range.getBoundingClientRect();
            lines.set(top, (lines.get(top) ?? "") + node.data[place]);
          }
          return [...lines.values()];
        }"""
    )
    assert lines == ["Red_winged_", "Blackbird"]
    expect(label).to_have_attribute("title", name)


def test_the_maps_legend_follows_the_scheme(opening: Callable[..., Any]) -> None:
    middle = "one => [...one.getContext('2d').getImageData(12, 12, 1, 1).data]"
    page, fresh = opening(color_scheme="light"), opening(color_scheme="dark")
    for each in (page, fresh):
        each.locator("#tab-map").click()
    light, dark = (each.locator("#map-legend canvas").first.evaluate(middle) for each in (page, fresh))
    assert light != dark
    page.emulate_media(color_scheme="dark")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.locator("#map-legend canvas").first.evaluate(middle) == dark


def test_the_map_by_keyboard(page: Any) -> None:
    page.locator("#tab-collection").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#map-status")).to_have_text("65 pictures")
    page.keyboard.press("Tab")
    expect(page.locator("#map-canvas")).to_be_focused()
    expect(page.locator("#map-tip")).to_be_visible()
    points = page.evaluate("fetch('map').then(answer => answer.json())")["points"]

    def pointed() -> dict[str, Any]:
        known = page.locator("#map-tip img").get_attribute("src").split("/")[1]
        return next(point for point in points if point["id"] == known)

    for key, axis, sign in (
        ("ArrowRight", "x", 1),
        ("ArrowDown", "y", 1),
        ("ArrowLeft", "x", -1),
        ("ArrowUp", "y", -1),
    ):
        before = pointed()
        page.keyboard.press(key)
        assert sign * (pointed()[axis] - before[axis]) > 0
    for key in ("+", "+", "ArrowRight", "0"):
        page.keyboard.press(key)
    expect(page.locator("#map-status")).to_contain_text("of 65")
    page.locator("#label").select_option(label="class5 (8)")
    page.locator("#map-canvas").focus()
    seen = []
    for _ in range(9):
        page.keyboard.press("PageDown")
        seen.append(pointed())
    assert {point["label"] for point in seen} == {"class5"}
    assert len({point["id"] for point in seen}) == 8
    assert searched(page, lambda: page.keyboard.press("Enter"))["id"] == seen[-1]["id"]


def test_the_models_card(page: Any, run: Path) -> None:
    card = page.evaluate("fetch('model').then(answer => answer.json())")
    best = json.loads((run / "figures.json").read_text())["best"]
    page.locator("#open-card").click()
    dialog = page.locator("#card")
    expect(dialog).to_be_visible()
    expect(dialog.locator("#card-figures p").first).to_have_text(re.compile(rf"{100 * best['MAP@R']:.1f} %\s*MAP@R"))
    for text in (
        card["trained_on"],
        "resnet8-half",
        "gsp",
        "8 numbers",
        "32 \u00d7 32 pixels",
        "65 pictures",
        card["fingerprint"],
    ):
        expect(dialog).to_contain_text(text)
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page.locator("#open-card")).to_be_focused()


def test_a_server_with_a_key(
    opening: Callable[..., Any], collection: index.Index, model: TrainedModel, upload: bytes
) -> None:
    with serving(create_app(collection, model, keys=Keys(read=(READ,)))) as url:
        page = opening(url, allowed="401", ready=False)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        expect(page.locator("#key")).to_be_visible()
        expect(page.locator("#key-value")).to_be_focused()
        page.keyboard.type("another key altogether")
        page.keyboard.press("Enter")
        expect(page.locator("#key-words")).to_contain_text("not accepted")
        page.locator("#key-value").fill(READ)
        page.keyboard.press("Enter")
        expect(page.locator("#items .card:not(.waiting)").first).to_be_visible()
        expect(page.locator("#key")).to_be_hidden()
        expect(page.locator("#items img").first).to_have_attribute("src", re.compile("^blob:"))
        assert page.locator("#items img").first.evaluate("image => image.decode().then(() => image.naturalWidth)") == 32
        page.locator("#file").set_input_files(upload_of(upload))
        assert hits_shown(page) == expected(collection, model.embed(noise(40, 30))[0])
        page.locator("#weights").check()
        expect(page.locator("#hits .veil").first).to_be_visible()
        assert READ in page.evaluate(KEPT)
        assert page.evaluate("localStorage.length") == 0
        assert not any("key" in each for each in asked)
        page.reload()
        expect(page.locator("#items .card:not(.waiting)").first).to_be_visible()
        page.context.close()


def test_nobody_has_the_key(opening: Callable[..., Any], collection: index.Index, model: TrainedModel) -> None:
    with serving(create_app(collection, model, keys=Keys(read=(READ,)))) as url:
        page = opening(url, allowed="401", ready=False)
        page.locator("#key [data-close]").click()
        expect(page.locator("#notice")).to_be_visible()
        expect(page.locator("#notice-words")).to_contain_text("key")
        page.context.close()


def test_what_the_server_refuses_is_said_in_its_words(opening: Callable[..., Any], upload: bytes) -> None:
    page = opening(allowed="415")
    with page.expect_response("**/search") as answer:
        page.locator("#file").set_input_files(upload_of(b"not a picture at all", "broken.jpg", "image/jpeg"))
    assert answer.value.status == 415
    message = answer.value.json()["error"]["message"]
    expect(page.locator("#notice-words")).to_have_text(message)
    expect(page.locator("#status")).to_have_text("The search failed")
    # it would fail again, and there is nothing to be seen of it
    expect(page.locator("#notice-action")).to_have_text("Choose another picture")
    expect(page.locator("#stage")).to_be_hidden()
    expect(page.locator("#crop")).to_be_hidden()
    expect(page.locator("#query-unseen")).to_be_visible()
    with page.expect_file_chooser() as chooser:
        page.locator("#notice-action").click()
    chooser.value.set_files([])
    page.locator("#file").set_input_files(upload_of(b"words", "letter.txt", "text/plain"))
    expect(page.locator("#notice-words")).to_have_text("letter.txt is not a picture.")
    page.locator("#file").set_input_files(upload_of(upload))
    assert len(hits_shown(page)) == 12
    expect(page.locator("#notice")).to_be_hidden()
    expect(page.locator("#query-unseen")).to_be_hidden()
    expect(page.locator("#stage")).to_be_visible()


def test_a_picture_that_is_seen_but_refused_has_no_regions(opening: Callable[..., Any], upload: bytes) -> None:
    page = opening(allowed="413")
    page.route("**/search", lambda route: route.fulfill(status=413, json={"error": {"message": "too many pixels"}}))
    page.locator("#file").set_input_files(upload_of(upload))
    expect(page.locator("#notice-words")).to_have_text("too many pixels")
    expect(page.locator("#stage")).to_be_visible()
    expect(page.locator("#crop")).to_be_disabled()
    box = page.locator("#query-picture").bounding_box()
    page.mouse.move(box["x"] + 20, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 120, steps=3)
    page.mouse.up()
    expect(page.locator("#region")).to_be_hidden()
    page.unroute("**/search")
    page.locator("#file").set_input_files(upload_of(upload, "again.png"))
    assert len(hits_shown(page)) == 12
    expect(page.locator("#crop")).to_be_enabled()


def test_a_busy_server_is_asked_again_and_a_lost_one_on_demand(opening: Callable[..., Any]) -> None:
    page = opening(allowed="503|ERR_FAILED")
    busy = {"error": {"code": "busy", "message": "too many requests"}}
    answers: list[Any] = []

    def answer(route: Any) -> None:
        answers.append(route)
        if len(answers) == 1:
            route.fulfill(status=503, headers={"Retry-After": "0.3"}, json=busy)
        elif len(answers) == 3:
            route.abort()
        else:
            route.continue_()

    page.route("**/search", answer)
    page.locator("#items .picture").nth(3).click()
    expect(page.locator("#notice-words")).to_have_text("too many requests Trying again in 0.3 s.")
    expect(page.locator("#hits .card:not(.waiting)")).to_have_count(12)
    page.locator("#hits .more").first.click()
    expect(page.locator("#notice-words")).to_contain_text("does not answer")
    expect(page.locator("#hits .card")).to_have_count(0)
    page.locator("#notice-action").click()
    expect(page.locator("#hits .card:not(.waiting)")).to_have_count(12)
    assert len(answers) == 4


def test_the_last_search_wins(page: Any, collection: index.Index) -> None:
    """An answer that comes late, to a question nobody asks any more, is not shown. Meanwhile the page says it waits."""
    held: list[Any] = []

    def answer(route: Any) -> None:
        if not held:
            held.append(route)
        else:
            route.continue_()

    page.route("**/search", answer)
    page.locator("#items .picture").nth(1).click()
    expect(page.locator("#results")).to_have_attribute("aria-busy", "true")
    expect(page.locator("#status")).to_have_text("Searching …")
    expect(page.locator("#hits .waiting")).to_have_count(12)
    page.locator("#tab-collection").click()
    page.locator("#items .picture").nth(2).click()
    item = collection.items()[2]
    right = expected(collection, collection.vectors([item.id])[0], without=item.id)
    assert hits_shown(page) == right
    held[0].fulfill(json={"hits": [], "took_ms": 1})
    page.wait_for_timeout(100)
    assert hits_shown(page) == right


def test_an_empty_collection(opening: Callable[..., Any], run: Path, model: TrainedModel, tmp_path: Path) -> None:
    with (
        index.create(tmp_path / "empty.idx", run=run) as empty,
        serving(create_app(empty, model)) as url,
    ):
        page = opening(url, ready=False)
        expect(page.locator("#collection-status")).to_contain_text("The collection is empty")
        page.locator("#tab-map").click()
        expect(page.locator("#map-status")).to_contain_text("The collection is empty")
        page.locator("#file").set_input_files(upload_of(encoded(noise(20, 20))))
        expect(page.locator("#notice-words")).to_contain_text("no other picture")
        page.context.close()


FOCUS = """() => {
  const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
  return [document.activeElement.id || document.activeElement.className, outlineStyle, parseFloat(outlineWidth)];
}"""


def test_all_by_keyboard(page: Any, collection: index.Index) -> None:
    """From the top of the page to a search, along its results and to the next search; one always sees where one is."""
    order = []

    def press(key: str) -> str:
        page.keyboard.press(key)
        name, style, width = page.evaluate(FOCUS)
        assert style != "none", f"no focus to be seen on {name}"
        assert width >= 2
        order.append(name)
        return str(name)

    while press("Tab") != "picture":
        assert len(order) < 20
    assert order == ["skip", "open-card", "choose", "label", "k", "rerank", "weights", "tab-collection", "picture"]

    def place() -> int:
        return int(
            page.evaluate(
                "[...document.activeElement.closest('ul').children].indexOf(document.activeElement.closest('li'))"
            )
        )

    columns = page.locator("#items .card").evaluate_all(
        "all => all.filter(one => one.offsetTop === all[0].offsetTop).length"
    )
    assert columns > 2
    for key, at in (
        ("ArrowRight", 1),
        ("ArrowDown", 1 + columns),
        ("ArrowLeft", columns),
        ("ArrowUp", 0),
        ("End", 47),
        ("ArrowDown", 47),
        ("Home", 0),
    ):
        press(key)
        assert place() == at
    press("ArrowRight")
    page.keyboard.press("Enter")
    assert hits_shown(page)
    expect(page.locator("#hits .picture").first).to_be_focused()  # not lost with the picture that was chosen
    press("ArrowRight")
    assert place() == 1
    assert press("Tab") == "more"
    following = collection.search(collection.vectors([collection.items()[1].id]), 3)[0][2].item
    assert searched(page, lambda: page.keyboard.press("Enter"))["id"] == following.id
    assert len(hits_shown(page)) == 12
    expect(page.locator("#hits .picture").first).to_be_focused()


def test_every_control_has_a_name(page: Any, collection: index.Index) -> None:
    search_with(page, striped(collection))
    nameless = page.evaluate(
        """[...document.querySelectorAll("button, input, select, canvas[tabindex], [role=application], dialog, ul")]
          .filter(one => !(one.textContent.trim() && one.tagName === "BUTTON") && !one.getAttribute("aria-label")
            && !one.getAttribute("aria-labelledby") && !one.labels?.length && one.checkVisibility())
          .map(one => one.outerHTML)"""
    )
    assert nameless == []


def test_no_view_is_wider_than_a_phone(opening: Callable[..., Any]) -> None:
    width = 360
    page = opening(viewport={"width": width, "height": 740}, has_touch=True, is_mobile=True)

    def overhang() -> int:
        return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    page.locator("#label").select_option(label=f"{NASTY} (1)")
    expect(page.locator("#items .card:not(.waiting)")).to_have_count(1)
    assert overhang() == 0
    page.locator("#items .picture").tap()
    expect(page.locator("#notice")).to_be_visible()
    assert overhang() == 0
    page.locator("#notice-action").tap()
    page.locator("#weights").check()
    assert len(hits_shown(page)) == 12
    assert overhang() == 0
    page.locator("#crop").tap()
    assert overhang() == 0
    page.locator("#hits .picture").first.tap()
    box = page.locator("#viewer").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    page.keyboard.press("Escape")
    page.locator("#tab-map").tap()
    expect(page.locator("#map-status")).to_have_text("65 pictures")
    assert overhang() == 0


CONTRAST = """() => {
  const light = (colour) => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255);
    const [red, green, blue] = parts.map(part => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = getComputedStyle(one).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  return ["#summary", "#open-card", "#choose", "#tab-results", "#tab-collection", "#status", "#query-detail", ".label",
    ".distance", ".more", "#label", "#rerank", "#rerank-help", "#notice-words", "#map-help"].map(name => {
      const one = document.querySelector(name);
      const pair = [light(getComputedStyle(one).color), light(behind(one))].sort((a, b) => b - a);
      return [name, (pair[0] + 0.05) / (pair[1] + 0.05)];
    });
}"""


@pytest.mark.parametrize(("scheme", "paper"), [("light", "rgb(246, 246, 244)"), ("dark", "rgb(19, 20, 23)")])
def test_light_and_dark(scheme: str, paper: str, opening: Callable[..., Any], collection: index.Index) -> None:
    page = opening(color_scheme=scheme)
    search_with(page, striped(collection))
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == paper
    for name, contrast in page.evaluate(CONTRAST):
        assert contrast >= 4.5, name


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_nothing_moves_for_those_who_do_not_want_it(motion: str, opening: Callable[..., Any]) -> None:
    page = opening(reduced_motion=motion)
    held: list[Any] = []
    page.route("**/search", lambda route: held.append(route))
    page.locator("#items .picture").first.click()
    expect(page.locator("#progress")).to_be_visible()
    moving = page.evaluate("document.getAnimations().filter(one => one instanceof CSSAnimation).length")
    assert (moving == 0) == (motion == "reduce")
    held[0].continue_()
    assert hits_shown(page)


def test_the_page_is_all_there_is() -> None:
    """Nothing is loaded from elsewhere, and no text becomes HTML: not by chance, but because the means are not used."""
    import lookalike.app.server

    files = sorted((Path(lookalike.app.server.__file__).parent / "page").iterdir())
    assert {file.suffix for file in files} == {".html", ".js", ".css"}
    for file in files:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "://" not in text, file.name
        for means in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            " style=",
            " onclick=",
        ):
            assert means not in text, f"{means} in {file.name}"
