"""What one does on the page, and what one sees there."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from lookalike import index
from lookalike.server.schemas import name_of

uvicorn = pytest.importorskip("uvicorn", reason="the page is served by uvicorn")
playwright = pytest.importorskip("playwright.sync_api", reason="THE PAGE IS NOT TESTED: pip install playwright")
expect = playwright.expect
PATIENCE = 20_000  # milliseconds: machines may be busy
expect.set_options(timeout=PATIENCE)


READ = "a key for looking at it"
# A label that would run, if it ever became HTML, and that a filter must quote.
NASTY = """"><img src=x onerror="document.title='owned'">, (a) = 'b' \\ c"""
NASTY_FILE = "<img src=x onerror=alert(1)>.png"
KEPT = "sessionStorage.getItem('lookalike-key')"


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


def hits_shown(page: Any) -> list[tuple[str, str]]:
    """Labels and distances, once the search is over."""
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    cards = page.locator("#hits .card:not(.waiting)").all()
    return [(card.locator(".label").inner_text(), card.locator(".distance").inner_text()) for card in cards]


def expected(idx: index.Index, vector: np.ndarray, k: int = 12, *, where: str | None = None, without: str = "") -> Any:
    found = idx.search(vector[None], k + 1, where=where)[0]
    return as_shown([hit for hit in found if hit.item.id != without][:k])


def as_shown(hits: list[index.Hit]) -> list[tuple[str, str]]:
    return [(hit.item.label or name_of(hit.item), f"{hit.distance:.3f}") for hit in hits]


def striped(idx: index.Index, place: int = 5) -> index.Item:
    """An item that is the same in every run; the order of the ids depends on the temporary folder."""
    return sorted(idx.items(where="label=class3"), key=lambda item: item.file.name)[place]


def search_with(page: Any, item: index.Item) -> list[tuple[str, str]]:
    page.goto(f"{page.url.partition('#')[0]}#id={item.id}")
    expect(page.locator("#query-title")).to_have_text(item.label or item.file.name)
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
