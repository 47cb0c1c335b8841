"""Searching on the page, held against what the index says itself."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from page_helpers import (
    CARRY,
    NASTY,
    NASTY_FILE,
    as_shown,
    expect,
    expected,
    hits_shown,
    search_with,
    serving,
    striped,
    upload_of,
)
from server_helpers import encoded, noise

from lookalike import index
from lookalike.index.reranking import METHODS
from lookalike.inference.model import TrainedModel
from lookalike.server import create_app


def test_opens_with_the_collection(page: Any) -> None:
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


def test_no_labels_at_all(opening: Callable[..., Any], run: Path, class_folders: Path, tmp_path: Path) -> None:
    files = sorted(class_folders.rglob("*.png"))[:3]
    with index.create(tmp_path / "flat.idx", run=run) as idx:
        model = idx.model("cpu")
        items = [index.file_item(file)._replace(id=f"i{number}") for number, file in enumerate(files)]
        idx.add(items, model.embed(files))
        with serving(create_app(idx, model)) as url:
            page = opening(url)
            expect(page.locator("#summary")).to_have_text("3 pictures")
            expect(page.locator("#label")).to_be_hidden()
            expect(page.locator("#items .label")).to_have_text([file.name for file in files])


def test_files_chosen_dropped_and_pasted(page: Any, collection: index.Index, model: TrainedModel) -> None:
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


def test_search_with_an_item_and_back(page: Any, collection: index.Index) -> None:
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
    expect(page.locator("#notice-text")).to_have_text("No picture without a label to compare with.")
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


def test_labels_are_never_html(page: Any, collection: index.Index) -> None:
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
        expect(page.locator("#notice-text")).to_contain_text("no other picture")
        page.context.close()


def test_model_card(page: Any, run: Path) -> None:
    card = page.evaluate("fetch('model').then(answer => answer.json())")
    best = json.loads((run / "figures.json").read_text())["best"]
    page.locator("#open-card").click()
    dialog = page.locator("#card")
    expect(dialog).to_be_visible()
    expect(dialog.locator("#card-metrics p").first).to_have_text(re.compile(rf"{100 * best['MAP@R']:.1f} %\s*MAP@R"))
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


def test_page_is_self_contained() -> None:
    """Nothing is loaded from elsewhere, and no text becomes HTML: not by chance, but because the means are not used."""
    import lookalike.server

    files = sorted((Path(lookalike.server.__file__).parent / "page").iterdir())
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
