"""A new model while the server answers: started over HTTP, watched, stopped, and taken back."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from server_helpers import READ, WRITE, in_process, in_thread, mark_what_it_knows

from lookalike import index
from lookalike.index.versions import install
from lookalike.inference.model import TrainedModel
from lookalike.models import Embedder
from lookalike.server import create_app
from lookalike.server.reloading import ReloadingApp

ENDED = ("installed", "kept", "rolled back", "failed", "stopped")


def wait_until_ended(client: httpx.Client) -> dict[str, Any]:
    for _ in range(1200):
        answer: dict[str, Any] = client.get("/improve").json()
        if answer["state"] in ENDED:
            return answer
        time.sleep(0.1)
    raise AssertionError(answer)


def wait_for_model(client: httpx.Client, is_right: Callable[[str], bool]) -> str:
    for _ in range(300):
        fingerprint = str(client.get("/model").json()["fingerprint"])
        if is_right(fingerprint):
            return fingerprint
        time.sleep(0.1)
    raise AssertionError(fingerprint)


def test_requests_go_to_the_current_version(
    index_folder: Path, served_model: TrainedModel, class_folders: Path
) -> None:
    """Every answer is of one version: the query's vector and those of the items are of the same model."""
    other = TrainedModel(Embedder.from_settings(served_model.settings(), served_model.embedder.backbone))
    files = sorted(class_folders.rglob("*.png"))
    ids = [index.file_item(file).id for file in files]
    vectors = dict(zip(ids, other.embed(files), strict=True))
    first = index.open(index_folder)

    def make_current_app(previous: Any) -> Any:
        opened = index.open(index_folder)
        return create_app(opened, opened.model("cpu"), previous=previous)

    app = ReloadingApp(create_app(first, served_model), make_current_app, seconds=0.05)
    wrong: list[Any] = []
    answered = 0
    done = threading.Event()
    with in_thread(app) as (url, _):  # type: ignore[arg-type]

        def ask() -> None:
            nonlocal answered
            picture = files[5].read_bytes()
            with httpx.Client(base_url=url) as client:
                while not done.is_set():
                    answer = client.post(
                        "/search", files={"picture": picture}, data={"k": "1", "include_query": "true"}
                    )
                    answered += 1
                    if answer.status_code != 200 or answer.json()["hits"][0]["distance"] > 1e-4:
                        wrong.append(answer.text)

        thread = threading.Thread(target=ask)
        thread.start()
        with httpx.Client(base_url=url) as client:
            old = client.get("/model").json()["fingerprint"]
            with index.open(index_folder) as idx:
                install(idx, other, lambda items, _: np.stack([vectors[item.id] for item in items]), report={})
            wait_for_model(client, lambda fingerprint: fingerprint != old)
            time.sleep(0.2)
            assert client.delete(f"/items/{ids[0]}").status_code == 200  # the new version can be written to
        done.set()
        thread.join()
    assert answered > 3
    assert not wrong
    with index.open(index_folder) as idx:
        assert idx.count() == 63


@pytest.mark.slow
def test_who_may_improve_and_stopping(index_folder: Path, tmp_path: Path) -> None:
    """That it installs a model and returns to the one before is tested with the page."""
    mark_what_it_knows(index_folder)
    environment = {
        "LOOKALIKE_READ_KEY": READ,
        "LOOKALIKE_WRITE_KEY": WRITE,
        "LOOKALIKE_CACHE": str(tmp_path / "cache"),
    }
    with in_process(index_folder, environment=environment) as (url, _):
        reader = httpx.Client(base_url=url, headers={"X-API-Key": READ}, timeout=60)
        writer = httpx.Client(base_url=url, headers={"X-API-Key": WRITE}, timeout=60)
        for method, path in (("POST", "/improve"), ("POST", "/improve/rollback"), ("DELETE", "/improve")):
            assert reader.request(method, path).status_code == 403
        assert reader.get("/improve").json()["state"] == "never"
        assert writer.post("/improve/rollback").status_code == 409
        assert writer.delete("/improve").status_code == 409
        before = reader.get("/model").json()["fingerprint"]
        assert writer.post("/improve").status_code == 202
        assert reader.get("/improve").json()["state"] == "running"
        assert writer.post("/improve").json()["error"]["code"] == "running"
        assert writer.delete("/improve").status_code == 200
        assert wait_until_ended(reader)["state"] == "stopped"
        assert reader.get("/model").json()["fingerprint"] == before
