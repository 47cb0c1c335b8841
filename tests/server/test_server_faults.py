"""Malformed requests by the hundred, and servers that are killed or asked to end in the middle of their work."""

import importlib
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from server_helpers import encoded, in_process, in_thread, noise

from lookalike import index
from lookalike.inference.model import TrainedModel
from lookalike.server import create_app

PERF = Path(__file__).parents[2] / "perf"
CASES = 150  # perf/serve.py --fuzz sends more


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PERF))
        return importlib.import_module("serve_fuzz")


def test_malformed_requests_get_4xx(fuzz: ModuleType, idx: index.Index, served_model: TrainedModel) -> None:
    with in_thread(create_app(idx, served_model)) as (url, _):
        host, port = url.removeprefix("http://").split(":")
        statuses: dict[str, Counter[int]] = {}
        for seed in range(CASES):
            case = fuzz.case(seed)
            status = fuzz.send((host, int(port)), case)
            statuses.setdefault(case.kind, Counter())[status] += 1
            assert status < 500, f"case({seed}) of {case.kind} gave {status}"
            assert status >= (0 if case.hangs_up else 1), f"case({seed}) of {case.kind} was not answered"
        assert set(statuses) == {"picture", "type", "form", "header", "field"}
        assert all(200 in statuses[kind] for kind in ("picture", "field", "header")), statuses
        assert {415, 422, 400} <= {status for each in statuses.values() for status in each}
        assert httpx.get(f"{url}/healthz", verify=False).status_code == 200
        assert 'status="5' not in httpx.get(f"{url}/metrics", verify=False).text


class Writer(threading.Thread):
    """Adds pictures one after the other, deletes every third again, and keeps what the server said was done."""

    def __init__(self, url: str, number: int) -> None:
        super().__init__()
        self.url, self.number = url, number
        self.added: dict[str, str] = {}
        self.deleted: set[str] = set()
        self.unknown: set[str] = set()  # deletions that were asked for and not answered
        self.codes: Counter[int] = Counter()

    def run(self) -> None:
        with httpx.Client(base_url=self.url, verify=False, timeout=30) as client:
            for i in range(10_000):
                label = f"{self.number} {i}"
                try:
                    picture = encoded(noise(20, 20, 1000 * self.number + i))
                    answer = client.post("/items", files={"picture": picture}, data={"label": label})
                    self.codes[answer.status_code] += 1
                    if answer.status_code != 200:
                        continue
                    item_id = answer.json()["id"]
                    self.added[item_id] = label
                    if i % 3 == 2:
                        self.unknown.add(item_id)
                        self.codes[client.delete(f"/items/{item_id}").status_code] += 1
                        self.unknown.discard(item_id)
                        self.deleted.add(item_id)
                except httpx.HTTPError:
                    return


def write_until(url: str, acknowledged: int) -> list[Writer]:
    writers = [Writer(url, number) for number in range(3)]
    for writer in writers:
        writer.start()
    until = time.monotonic() + 60
    while sum(len(writer.added) for writer in writers) < acknowledged and time.monotonic() < until:
        time.sleep(0.01)
    return writers


def check_kept(url: str, index_folder: Path, writers: list[Writer]) -> None:
    added = {item_id: label for writer in writers for item_id, label in writer.added.items()}
    deleted = set[str]().union(*(writer.deleted for writer in writers))
    unknown = set[str]().union(*(writer.unknown for writer in writers))
    with httpx.Client(base_url=url, verify=False, timeout=30) as client, index.open(index_folder) as idx:
        there = {item.id: item.label for item in idx.items()}
        for item_id, label in added.items():
            if item_id in unknown:
                continue
            assert (item_id in there) is (item_id not in deleted)
            if item_id in there:
                assert there[item_id] == label
                assert client.get(f"/items/{item_id}/image").status_code == 200
        assert client.get("/healthz").json()["items"] == len(there) == idx.count()
        some = next(item_id for item_id in added if item_id in there)
        assert client.post("/search", files={"id": (None, some)}).status_code == 200


@pytest.mark.slow
def test_uploads_survive_kill_and_shutdown(index_folder: Path) -> None:
    with in_process(index_folder) as (url, process):
        writers = write_until(url, 25)
        process.send_signal(signal.SIGKILL)
        for writer in writers:
            writer.join(30)
        assert process.wait(30) == -signal.SIGKILL
    assert sum(len(writer.added) for writer in writers) >= 25
    assert any(writer.deleted for writer in writers)
    assert [dict(writer.codes) for writer in writers] == [{200: sum(writer.codes.values())} for writer in writers]

    with in_process(index_folder) as (url, process):
        check_kept(url, index_folder, writers)
        more = write_until(url, 25)
        process.send_signal(signal.SIGTERM)
        for writer in more:
            writer.join(30)
        assert process.wait(30) == 0, "asked to end, it ends well"
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
        assert all(set(writer.codes) <= {200, 503} for writer in more)
    with index.open(index_folder) as idx:
        there = {item.id for item in idx.items()}
        assert all(set(writer.added) - writer.deleted - writer.unknown <= there for writer in [*writers, *more])
        uploads = {file.stem for file in (index_folder / "uploads").glob("*.jpg")}
        assert (
            there - {item.id for item in idx.items(where="label in (" + ",".join(f"class{c}" for c in range(8)) + ")")}
            <= uploads
        )
