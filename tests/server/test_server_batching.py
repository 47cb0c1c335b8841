"""The model's queue: batches, order, what is too much, what is too late, and the end."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import httpx
import numpy as np
import pytest
import torch
from server_helpers import encoded, in_thread, noise

from lookalike import index
from lookalike.data.cropping import Pixels
from lookalike.inference.model import TrainedModel
from lookalike.server import Limits, create_app
from lookalike.server.batching import Batcher, QueueFull


class PausedModel:
    """A model that computes when it is allowed to, and remembers the sizes of its batches."""

    def __init__(self, model: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
        self.batches: list[int] = []
        self.allowed = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self._vectors = model.vectors
        monkeypatch.setattr(model, "vectors", self)

    def __call__(self, crops: torch.Tensor) -> torch.Tensor:
        self.batches.append(len(crops))
        self.entered.release()
        assert self.allowed.acquire(timeout=30)
        return self._vectors(crops)


@pytest.fixture
def paused(served_model: TrainedModel, monkeypatch: pytest.MonkeyPatch) -> Iterator[PausedModel]:
    made = PausedModel(served_model, monkeypatch)
    yield made
    made.allowed.release(1000)


@pytest.fixture
def crops(served_model: TrainedModel) -> list[Pixels]:
    return [served_model.preprocess.crop(noise(32, 32, seed)) for seed in range(8)]


def test_concurrent_requests_get_their_own_vectors(served_model: TrainedModel, crops: list[Pixels]) -> None:
    sizes: list[int] = []
    batcher = Batcher(served_model, queue=1000, batch=16, observe=sizes.append)
    expected = served_model.embed([noise(32, 32, seed) for seed in range(8)])
    with ThreadPoolExecutor(8) as threads:
        futures = list(threads.map(lambda i: batcher.embed(crops[i % 8]), range(200)))
    for i, future in enumerate(futures):
        np.testing.assert_array_equal(future.result(30), expected[i % 8])
    assert sum(sizes) == 200
    assert max(sizes) <= 16
    batcher.close()


def test_batches_collect_while_the_model_computes(
    served_model: TrainedModel, paused: PausedModel, crops: list[Pixels]
) -> None:
    batcher = Batcher(served_model, queue=100, batch=4)
    first = batcher.embed(crops[0])
    assert paused.entered.acquire(timeout=30)
    order: list[str] = []
    rest = [batcher.embed(crops[i]) for i in range(1, 4)]
    alone = batcher.run(lambda _: order.append("alone"))
    rest += [batcher.embed(each) for each in crops[:6]]
    assert len(batcher) == 10
    rest[3].cancel()  # its request was given up: not worth computing
    paused.allowed.release(100)
    wait([first, alone, *rest], timeout=60)
    assert paused.batches == [1, 3, 4, 1], "what runs on its own divides what came before it from what came after"
    assert order == ["alone"]
    assert rest[3].cancelled()
    batcher.close()


def test_full_and_closed_queues_refuse_jobs(
    served_model: TrainedModel, paused: PausedModel, crops: list[Pixels]
) -> None:
    batcher = Batcher(served_model, queue=2, batch=4)
    accepted = [batcher.embed(crops[0])]
    assert paused.entered.acquire(timeout=30)
    accepted += [batcher.embed(crops[0]), batcher.embed(crops[1])]
    with pytest.raises(QueueFull, match="2 pictures are waiting"):
        batcher.embed(crops[0])
    closing = threading.Thread(target=batcher.close)
    closing.start()
    while not batcher._closed:
        time.sleep(0.001)
    with pytest.raises(QueueFull, match="closing"):
        batcher.embed(crops[0])
    assert not any(future.done() for future in accepted)
    paused.allowed.release(10)
    closing.join(30)
    assert not closing.is_alive()
    assert all(future.result(0).shape == (8,) for future in accepted), "what was accepted is finished"


def test_a_failing_job_does_not_affect_others(
    served_model: TrainedModel, paused: PausedModel, crops: list[Pixels]
) -> None:
    batcher = Batcher(served_model, queue=9, batch=9)
    first = batcher.embed(crops[0])
    assert paused.entered.acquire(timeout=30)
    good, wrong = batcher.embed(crops[1]), batcher.embed(np.zeros((5, 32, 32), np.uint8))
    paused.allowed.release(10)
    assert first.result(30).shape == good.result(30).shape == (8,)
    with pytest.raises(ValueError, match="pixels must be uint8"):
        wrong.result(30)
    assert batcher.embed(crops[0]).result(30).shape == (8,), "and the thread goes on"
    batcher.close()


CLIENT = httpx.Client(verify=False, timeout=30)  # there is no TLS here, and loading certificates takes time


def post(url: str, path: str = "/embed", seed: int = 0) -> httpx.Response:
    return CLIENT.post(f"{url}{path}", files={"picture": encoded(noise(20, 20, seed))})


def test_a_full_queue_gets_503(idx: index.Index, served_model: TrainedModel, paused: PausedModel) -> None:
    app = create_app(idx, served_model, limits=Limits(queue=2, batch=1))
    with in_thread(app) as (url, _), ThreadPoolExecutor(12) as threads:
        running = [threads.submit(post, url)]
        assert paused.entered.acquire(timeout=30)
        running += [threads.submit(post, url) for _ in range(2)]
        while len(app.state.context.batcher) < 2:
            time.sleep(0.005)
        for path in ("/embed", "/search", "/items", "/explain"):
            refused = post(url, path)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "busy"
            assert float(refused.headers["retry-after"]) > 0
        assert CLIENT.get(f"{url}/labels").status_code == 200, "what needs no model is answered all the same"
        paused.allowed.release(100)
        assert [each.result(30).status_code for each in running] == [200, 200, 200]
        assert "lookalike_queue_length 0.0" in CLIENT.get(f"{url}/metrics").text


def test_too_many_requests_get_503(idx: index.Index, served_model: TrainedModel, paused: PausedModel) -> None:
    with (
        in_thread(create_app(idx, served_model, limits=Limits(requests=1))) as (url, _),
        ThreadPoolExecutor(1) as threads,
    ):
        running = threads.submit(post, url)
        assert paused.entered.acquire(timeout=30)
        refused = CLIENT.get(f"{url}/labels")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "busy")
        assert "retry-after" in refused.headers
        assert CLIENT.get(f"{url}/healthz").status_code == 200
        paused.allowed.release(10)
        assert running.result(30).status_code == 200
        assert CLIENT.get(f"{url}/labels").status_code == 200


def test_timeouts_get_504_and_leave_the_queue(
    idx: index.Index, served_model: TrainedModel, paused: PausedModel
) -> None:
    limits = Limits(seconds=3, batch=1)
    with in_thread(create_app(idx, served_model, limits=limits)) as (url, _), ThreadPoolExecutor(4) as threads:
        paused.allowed.release()
        while post(url).status_code != 200:  # until the processes that decode have started
            pass
        assert paused.entered.acquire(timeout=30)
        batches = len(paused.batches)
        running = [threads.submit(post, url)]
        assert paused.entered.acquire(timeout=30)  # the others wait behind it
        running += [threads.submit(post, url, path) for path in ("/search", "/items", "/explain")]
        for each in running:
            late = each.result(30)
            assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
        assert idx.count() == 64
        paused.allowed.release(100)
        assert post(url).status_code == 200
        assert len(paused.batches) == batches + 2, "those that waited were taken out of the queue"


def test_slow_uploads_get_408(idx: index.Index, served_model: TrainedModel) -> None:
    def trickle() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\n'
        for _ in range(8):
            time.sleep(0.1)
            yield b"0"

    with in_thread(create_app(idx, served_model, limits=Limits(upload_seconds=0.3))) as (url, _):
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        slow = CLIENT.post(f"{url}/embed", content=trickle(), headers=headers)
        assert (slow.status_code, slow.json()["error"]["code"]) == (408, "too_slow")


def test_large_uploads_get_413(idx: index.Index, served_model: TrainedModel) -> None:
    with in_thread(create_app(idx, served_model, limits=Limits(upload_bytes=100_000))) as (url, _):
        for content in (bytes(3_000_000), (bytes(10_000) for _ in range(300))):
            answer = CLIENT.post(
                f"{url}/embed", content=content, headers={"Content-Type": "multipart/form-data; boundary=x"}
            )
            assert answer.status_code in (400, 413)
        head = b'--x\r\nContent-Disposition: form-data; name="picture"; filename="a"\r\n\r\n'
        parts = (head if i == 0 else bytes(10_000) for i in range(300))
        answer = CLIENT.post(f"{url}/embed", content=parts, headers={"Content-Type": "multipart/form-data; boundary=x"})
        assert answer.status_code == 413


def test_shutdown_finishes_accepted_requests(idx: index.Index, served_model: TrainedModel, paused: PausedModel) -> None:
    with ThreadPoolExecutor(3) as threads, in_thread(create_app(idx, served_model)) as (url, server):
        running: list[Future[httpx.Response]] = [threads.submit(post, url, "/items", 50)]
        assert paused.entered.acquire(timeout=30)
        server.should_exit = True
        time.sleep(0.3)
        with pytest.raises(httpx.HTTPError):
            CLIENT.get(f"{url}/healthz", timeout=5)
        assert not running[0].done()
        paused.allowed.release(10)
        answer = running[0].result(30)
        assert answer.status_code == 200
        assert idx.get([answer.json()["id"]])[0] is not None


def test_concurrent_search_add_and_delete(idx: index.Index, served_model: TrainedModel) -> None:
    with (
        in_thread(create_app(idx, served_model)) as (url, _),
        httpx.Client(base_url=url, verify=False, timeout=30) as client,
        ThreadPoolExecutor(8) as threads,
    ):

        def one(seed: int) -> tuple[str, list[int]]:
            picture = encoded(noise(20, 20, 100 + seed // 2))  # each picture twice: they meet
            added = client.post("/items", files={"picture": picture}, data={"label": "new"})
            item_id = added.json()["id"]
            found = client.post("/search", files={"picture": picture}, data={"k": "1"})
            shown = client.get(f"/items/{item_id}/image", params={"side": 16})
            codes = [added.status_code, found.status_code, shown.status_code, client.get("/map").status_code]
            if seed % 4 == 0:
                codes.append(client.delete(f"/items/{item_id}").status_code)
            return item_id, codes

        results = list(threads.map(one, range(32)))
        assert {code for _, codes in results for code in codes} <= {200, 404, 410}
        assert all(codes[:2] == [200, 200] for _, codes in results)
        kept = {item_id for i, (item_id, _) in enumerate(results) if i // 2 % 2}
        assert {item.id for item in idx.items(where="label=new")} >= kept
        files = {file.stem for file in (idx.path / "uploads").glob("*.jpg")}
        assert files == {item.id for item in idx.items(where="label=new")}, "a picture for each entry, and no other"
        assert 'status="5' not in CLIENT.get(f"{url}/metrics").text
