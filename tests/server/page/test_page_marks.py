"""Results are marked by keyboard and pointer, undone, kept over reloads and shared with other windows."""

import csv
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page_helpers import expect, search_with, serving, striped, upload_of
from server_helpers import encoded, noise

from lookalike import index
from lookalike.index.contents import marked_pictures
from lookalike.index.marks import Marks
from lookalike.inference.model import TrainedModel
from lookalike.server import create_app


@pytest.fixture
def own(run: Path, model: TrainedModel, class_folders: Path, tmp_path: Path) -> Iterator[index.Index]:
    """An index that the test may change, with stamps as lookalike index makes them."""
    with index.create(tmp_path / "own.idx", run=run) as idx:
        index.sync(idx, model, class_folders)
        yield idx


@pytest.fixture
def url(own: index.Index, model: TrainedModel) -> Iterator[str]:
    with serving(create_app(own, model)) as address:
        yield address


def focus(page: Any, place: int) -> Any:
    """The card at this place, with the focus on its picture."""
    card = page.locator("#hits .card").nth(place)
    card.locator(".picture").focus()
    return card


def pressed(card: Any) -> str | None:
    """The verdict that a card shows."""
    verdicts = card.locator('[data-verdict][aria-pressed="true"]')
    return verdicts.get_attribute("data-verdict") if verdicts.count() else None


def stored(idx: index.Index, query: str, other: str) -> str | None:
    """The last verdict about two items that was not undone."""
    one, two = marked_pictures(idx, [query, other])
    marks = Marks(idx.path).between(one.content, [two.content])
    return marks[two.content].verdict if marks else None


def ids_shown(page: Any) -> list[str]:
    sources = page.locator("#hits .picture img").evaluate_all("all => all.map((image) => image.src)")
    return [source.split("/items/")[1].split("/")[0] for source in sources]


def test_mark_by_keyboard_undo_and_reload(own: index.Index, url: str, opening: Callable[..., Any]) -> None:
    page = opening(url)
    query = striped(own)
    search_with(page, query)
    ids = ids_shown(page)
    for place, (key, verdict) in enumerate([("y", "same"), ("n", "different"), (" ", "skip"), ("Y", "same")]):
        card = focus(page, place)
        page.keyboard.press(key)
        expect(card.locator(f'[data-verdict="{verdict}"]')).to_have_attribute("aria-pressed", "true")
        expect(page.locator("#marks-count")).to_have_text(f"{place + 1} mark{'s' * bool(place)}")
        assert stored(own, query.id, ids[place]) == verdict
    expect(page.locator("#viewer")).to_be_hidden()  # space did not open the picture
    cards = page.locator("#hits .card")
    expect(cards.nth(0)).to_have_class("card is-same")
    focus(page, 0)
    page.keyboard.press("n")  # a change of mind
    expect(page.locator("#marks-count")).to_have_text("5 marks")
    page.keyboard.press("u")
    expect(page.locator("#marks-count")).to_have_text("4 marks")
    expect(cards.nth(0)).to_have_class("card is-same")
    page.keyboard.press("u")
    expect(cards.nth(3)).to_have_class("card")
    assert stored(own, query.id, ids[3]) is None
    page.reload()
    expect(page.locator("#marks-count")).to_have_text("3 marks")
    expect(cards.nth(2)).to_have_class("card is-skipped")
    assert [pressed(cards.nth(place)) for place in range(4)] == ["same", "different", "skip", None]
    page.locator("#marks-undo").click()  # still known after the reload
    expect(cards.nth(2)).to_have_class("card")
    expect(page.locator("#marks-count")).to_have_text("2 marks")
    cards.nth(5).locator('[data-verdict="different"]').click()
    expect(cards.nth(5)).to_have_class("card is-different")
    expect(page.locator("#marks-count")).to_have_text("3 marks")  # the answer of the server: it is stored
    assert [mark.undone_time is None for mark in Marks(own.path).history()] == [True, False, False, False, True, True]
    page.locator("#tab-teach").click()
    with page.expect_download() as download:
        page.locator("#marks-csv").click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    assert [row["state"] for row in rows] == ["in force"] * 2 + ["undone"] * 3 + ["in force"]


def test_an_uploaded_query(own: index.Index, url: str, opening: Callable[..., Any]) -> None:
    page = opening(url)
    page.locator("#file").set_input_files(upload_of(encoded(noise(40, 30))))
    expect(page.locator("#hits .card:not(.waiting)").first).to_be_visible()
    sent: list[bool] = []  # for each mark, whether the hash of the picture went instead of it

    def note(asked: Any) -> None:
        if asked.method == "POST" and asked.url.endswith("/marks"):
            sent.append(b'name="content"' in (asked.post_data_buffer or b""))

    page.on("request", note)
    focus(page, 0)
    page.keyboard.press("y")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("n")
    expect(page.locator("#marks-count")).to_have_text("2 marks")
    assert sent == [False, True]
    assert len(Marks(own.path).pairs(own)) == 2
    page.locator("#crop").click()
    page.locator("#search-region").click()
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    focus(page, 0)
    page.keyboard.press("y")
    expect(page.locator("#marks-status")).to_have_text(
        "A mark is about whole pictures: search with the whole picture first."
    )
    assert Marks(own.path).count() == 2


def test_two_browsers(own: index.Index, url: str, opening: Callable[..., Any]) -> None:
    anna, ben = opening(url), opening(url)
    query = striped(own)
    for page in (anna, ben):
        search_with(page, query)
    focus(anna, 0)
    anna.keyboard.press("y")
    expect(anna.locator("#marks-count")).to_have_text("1 mark")
    focus(ben, 0)
    ben.keyboard.press("n")
    expect(ben.locator("#marks-count")).to_have_text("2 marks")
    anna.evaluate("dispatchEvent(new Event('focus'))")
    expect(anna.locator("#hits .card").first).to_have_class("card is-different")
    anna.keyboard.press("u")  # her own mark, which ben's has replaced
    expect(anna.locator("#marks-count")).to_have_text("1 mark")
    expect(anna.locator("#hits .card").first).to_have_class("card is-different")
    ben.keyboard.press("u")
    expect(ben.locator("#hits .card").first).to_have_class("card")
    assert len(Marks(own.path).history()) == 2


def test_the_basket_and_contradictions(own: index.Index, url: str, opening: Callable[..., Any]) -> None:
    page = opening(url)
    search_with(page, striped(own))
    for place in range(3):
        page.locator("#hits .select").nth(place).check()
    page.locator('[data-group="same"]').click()
    expect(page.locator("#basket-count")).to_have_text("3 pictures selected. 3 pairs marked as the same thing")
    ids = ids_shown(page)
    marks = Marks(own.path)
    assert [pair.same for pair in marks.pairs(own)] == [True] * 3
    marks.add(*marked_pictures(own, ids[:2]), "different", by="ben")
    page.locator("#tab-teach").click()
    expect(page.locator("#contradictions > li")).to_have_count(1)
    expect(page.locator("#contradictions .mark-row")).to_have_count(3)  # the different pair and a chain of two
    expect(page.locator("#contradictions .mark-row").first).to_contain_text("by ben")
    expect(page.locator("#teach-status")).to_contain_text("3 left out because they contradict each other")
    page.locator("#contradictions .mark-row").first.get_by_role("button").click()
    expect(page.locator("#contradictions-section")).to_be_hidden()
    expect(page.locator("#teach-status")).to_have_text("3 marks; 3 pairs to learn from.")
    page.locator("#marks-undo").click()  # the basket as one
    expect(page.locator("#marks-count")).to_have_text("0 marks")
    page.locator('[data-group="different"]').click()
    expect(page.locator("#marks-count")).to_have_text("3 marks")
    assert [pair.same for pair in marks.pairs(own)] == [False] * 3


def test_labels_are_edited_on_the_page(own: index.Index, url: str, opening: Callable[..., Any]) -> None:
    index.calibrate(own)
    page = opening(url, allowed="422")
    search_with(page, striped(own, 0))  # for some others the page says that nothing looks the same
    ids = ids_shown(page)
    for place in (0, 1):
        page.locator("#hits .select").nth(place).check()
    page.locator("#basket-label").fill("<b>wren</b>")
    page.locator("#basket-label-form button").click()
    expect(page.locator("#basket-count")).to_have_text("2 pictures selected. 2 pictures labelled")
    expect(page.locator("#hits .label").first).to_have_text("<b>wren</b>")
    assert own.labels()["<b>wren</b>"] == 2
    # one picture, with a suggestion
    page.locator("#hits .picture").nth(2).click()
    suggestion = page.locator("#label-suggestions button").first
    expect(suggestion).to_have_text(re.compile(r".+ \d+ %"))
    page.locator("#label-value").fill("robin")
    page.locator("#label-form button").click()
    expect(page.locator("#viewer-title")).to_have_text("robin")
    page.locator("#metadata-value").fill('{"year": 2020}')
    page.locator("#metadata-form button").click()
    expect(page.locator("#label-status")).to_have_text("1 picture changed.")
    item = own.get([ids[2]])[0]
    assert item is not None
    assert (item.label, item.metadata) == ("robin", {"year": 2020})
    page.locator("#metadata-value").fill("[1]")
    page.locator("#metadata-form button").click()
    expect(page.locator("#label-status")).to_contain_text("metadata must be a JSON object")
    page.keyboard.press("Escape")
    # rename, merge, undo
    page.locator("#tab-teach").click()
    page.locator("#rename-from").select_option("robin")
    page.locator("#rename-to").fill("finch")
    page.locator("#rename-apply").click()
    expect(page.locator("#rename-status")).to_have_text("1 picture changed.")
    page.locator("#rename-from").select_option("finch")
    page.locator("#rename-to").fill("<b>wren</b>")
    page.locator("#rename-apply").click()
    expect(page.locator("#rename-status")).to_contain_text("Press again to merge finch into it")
    page.locator("#rename-apply").click()
    expect(page.locator("#rename-status")).to_have_text("1 picture changed.")
    assert own.labels()["<b>wren</b>"] == 3
    page.locator("#edits-list .mark-row").first.get_by_role("button").click()
    expect(page.locator("#edits-list .mark-row").first).to_contain_text("undo")
    assert own.labels()["finch"] == 1
    page.reload()
    page.locator("#tab-teach").click()
    expect(page.locator("#edits-list .mark-row")).to_have_count(6)
    with page.expect_download() as download:
        page.locator("#labels-csv").click()
    assert len(list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))) == own.count()


def test_the_queue_by_keyboard(own: index.Index, url: str, opening: Callable[..., Any]) -> None:
    page = opening(url)
    page.locator("#tab-teach").click()
    page.locator("#queue-start").click()
    expect(page.locator("#queue-status")).to_contain_text("1 of 20")
    expect(page.locator("#queue-note")).to_contain_text("there is no calibration")
    for number, key in enumerate(["y", "n", " ", "y"], start=2):
        page.keyboard.press(key)
        expect(page.locator("#queue-status")).to_contain_text(f"{number} of 20")
    page.locator('[data-answer="skip"]').click()
    expect(page.locator("#queue-status")).to_contain_text("6 of 20")
    verdicts = [mark.verdict for mark in Marks(own.path).history()[::-1]]
    assert verdicts == ["same", "different", "skip", "same", "skip"]
    page.keyboard.press("u")
    expect(page.locator("#marks-count")).to_have_text("4 marks")
    for _ in range(6, 21):
        before = page.locator("#queue-status").inner_text()
        page.keyboard.press("n")
        expect(page.locator("#queue-status")).not_to_have_text(before)
    expect(page.locator("#queue-status")).to_have_text("All answered.")
    assert Marks(own.path).count() == 19


def test_readers_see_no_marks(opening: Callable[..., Any], own: index.Index, model: TrainedModel) -> None:
    from server_helpers import READ, WRITE

    from lookalike.server import Keys

    with serving(create_app(own, model, keys=Keys((READ,), (WRITE,)))) as address:
        page = opening(address, ready=False, allowed="401|CONNECTION_REFUSED")
        page.locator("#key-value").fill(READ)
        page.locator("#key-form button.primary").click()
        expect(page.locator("#items .card:not(.waiting)").first).to_be_attached()
        page.locator("#items .picture").first.click()
        expect(page.locator("#hits .card:not(.waiting)").first).to_be_visible()
        for hidden in ("#tab-teach", "#marks-bar", ".verdicts"):
            expect(page.locator(hidden).first).to_be_hidden()
        focus(page, 0)
        page.keyboard.press("y")
        page.keyboard.press("u")
        assert not (own.path / "marks.sqlite").exists()
