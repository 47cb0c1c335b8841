"""Findings over HTTP: listed, decided, measured and applied; nothing changes before, and two clients see each other."""

import csv
import io
import json
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from server_helpers import WRITE

import lookalike
from lookalike import index
from lookalike._util.checksums import with_checksum
from lookalike.cli import main
from lookalike.index.decisions import Choice, Decisions
from lookalike.index.findings_file import read_records
from lookalike.index.job_status import read_status
from lookalike.inference.model import TrainedModel
from lookalike.server import Keys, create_app
from lookalike.server.keys import Rules


@pytest.fixture
def faulty(idx: index.Index, tmp_path: Path) -> index.Index:
    """Item 0 twice, the second time with another label; items 1 to 3 have no pictures beside them in their label."""
    items = idx.items()
    vectors = idx.vectors([item.id for item in items])
    copy = tmp_path / "copy" / "z.png"
    copy.parent.mkdir()
    shutil.copy(items[0].file, copy)
    idx.add([index.file_item(copy, label="another")], vectors[:1])
    assert main(["doctor", str(idx.path)]) == 0
    return idx


def post(client: TestClient, path: str, **fields: str) -> httpx.Response:
    return client.post(path, files={name: (None, value) for name, value in fields.items()})


def found(client: TestClient, kind: str) -> dict[str, Any]:
    findings = client.get("/doctor/findings", params={"kind": kind}).json()["findings"]
    assert len(findings) == 1
    finding: dict[str, Any] = findings[0]
    return finding


def test_decide_measure_and_apply(client: TestClient, faulty: index.Index) -> None:
    answer = client.get("/doctor").json()
    assert (answer["state"], answer["pictures"]) == ("done", 65)
    kinds = {kind["kind"]: (kind["open"], kind["decided"]) for kind in answer["kinds"]}
    assert kinds["exact duplicate"] == (1, 0)
    assert kinds["few pictures"] == (1, 0)
    twice = found(client, "exact duplicate")
    assert (twice["suggested"], twice["action"], twice["decided"]) == ("drop", "drop", False)
    assert len(twice["items"]) == 2, "side by side"
    assert "/" not in twice["reason"], "folders are private"
    first, second = twice["items"][1]["id"], twice["items"][0]["id"]
    assert found(client, "few pictures")["items"][0]["label"] == "another"

    labels = {item.id: item.label for item in faulty.items()}
    assert post(client, "/doctor/decide", finding=twice["finding"], action="relabel").json()["decided"]
    assert found(client, "exact duplicate")["new_label"] == labels[first]
    assert labels == {item.id: item.label for item in faulty.items()}, "nothing changes before it is applied"
    before = client.get("/doctor").json()
    effect = client.get("/doctor/effect").json()
    assert (effect["relabelled"], effect["dropped"]) == (before["relabelled"], before["dropped"])
    assert 0 < effect["before"] <= 1
    assert effect["after"] != effect["before"]
    rows = list(csv.DictReader(io.StringIO(client.get("/doctor/corrected.csv").text)))
    assert {row["label"] for row in rows if row["path"].endswith("z.png")} == {labels[first]}

    applied = client.post("/doctor/apply").json()
    assert (applied["relabelled"], applied["dropped"]) == (before["relabelled"], before["dropped"])
    assert client.get(f"/items/{second}").json()["label"] == labels[first]
    assert client.get("/doctor/findings", params={"kind": "exact duplicate"}).json()["total"] == 0
    assert client.post("/doctor/apply").json() == {"relabelled": 0, "dropped": 0, "edit": 0}
    assert post(client, "/labels/undo", edit=str(applied["edit"])).status_code == 200
    again = found(client, "exact duplicate")  # open as before
    assert again["action"] == "relabel"
    assert post(client, "/doctor/decide", finding=again["finding"], action="drop").status_code == 200
    count = faulty.count()
    assert client.post("/doctor/apply").json()["dropped"] >= 1
    assert faulty.get([second]) == [None]
    assert faulty.count() < count
    assert "z.png" not in (faulty.path / "labels.csv").read_text()


def test_two_people_and_what_is_refused(
    client: TestClient, faulty: index.Index, served_model: TrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    key = found(client, "exact duplicate")["finding"]
    few = found(client, "few pictures")["finding"]
    for fields, status, message in (
        ({"finding": key, "action": "burn"}, 422, "action must be one of"),
        ({"finding": few, "action": "drop"}, 422, "action must be one of"),
        ({"finding": "0" * 16, "action": "drop"}, 404, "no open finding"),
        ({"finding": key, "action": "relabel", "label": "x" * 1001}, 422, "at most 1,000"),
    ):
        answer = post(client, "/doctor/decide", **fields)
        assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text
    assert client.get("/doctor/findings", params={"kind": "nothing"}).status_code == 422
    keys = Keys(write=(WRITE,), rules={WRITE: Rules(name="anna")})
    with index.open(faulty.path) as other_idx:
        app = create_app(other_idx, served_model, keys=keys)
        with TestClient(app, base_url="http://127.0.0.1", headers={"X-API-Key": WRITE}) as anna:
            post(client, "/doctor/decide", finding=key, action="keep")
            assert found(anna, "exact duplicate")["action"] == "keep"
            post(anna, "/doctor/decide", finding=key, action="relabel", label="wren")
            last = found(client, "exact duplicate")
            assert (last["action"], last["new_label"], last["by"]) == ("relabel", "wren", "anna")
    with Decisions(faulty.path) as decisions:
        finding = decisions.check()
        assert finding is not None
        assert (finding.status, finding.detail) == ("ok", "2 decisions")  # the first is in the history
        with pytest.raises(ValueError, match="relabel needs a new label"):
            decisions.add([Choice(key, "relabel")])
    with closing(sqlite3.connect(faulty.path / "doctor.sqlite", isolation_level=None)) as connection:
        connection.execute("UPDATE decisions SET action = 'drop' WHERE number = 2")
    capsys.readouterr()
    assert main(["verify", str(faulty.path)]) == 1
    assert "damaged rows: 1" in capsys.readouterr().out
    assert found(client, "exact duplicate")["action"] == "keep"


def test_damaged_or_crafted_findings_are_left_out(client: TestClient, faulty: index.Index) -> None:
    """A flipped bit must not drop or relabel another picture, and no file of a stranger gives a 500."""
    findings, status = faulty.path / "doctor-findings.json", faulty.path / "doctor.json"
    assert [each.status for each in lookalike.verify(faulty.path) if each.part == findings.name] == ["ok"]
    good, good_status = findings.read_bytes(), status.read_bytes()
    rng = random.Random(0)
    for position in rng.choices(range(len(good)), k=20):
        damaged = bytearray(good)
        damaged[position] ^= 1 << rng.randrange(8)
        findings.write_bytes(damaged)
        assert read_records(faulty.path) == [], position
    assert [each.status for each in lookalike.verify(faulty.path) if each.part == findings.name] == ["damaged"]
    for position in rng.choices(range(len(good_status)), k=20):
        damaged = bytearray(good_status)
        damaged[position] ^= 1 << rng.randrange(8)
        status.write_bytes(damaged)
        assert read_status(faulty.path, "doctor").state == "never", position
    records = json.loads(good)["records"]
    for change in ({"shown": None}, {"action": "burn"}, {"id": "../x"}, {"score": "1"}, {"shown": [1]}, {"label": []}):
        findings.write_text(with_checksum({"records": [{**records[0], **change}]}))
        assert client.get("/doctor").json()["kinds"] == [], change
    for change in ({"state": "installed"}, {"started": 1e300}, {"done": "x"}, {"report": {"pictures": "x"}}):
        content = {key: value for key, value in json.loads(good_status).items() if key != "checksum"}
        status.write_text(with_checksum({**content, **change}))
        assert client.get("/doctor").json()["state"] == "never", change
    findings.write_text(json.dumps(records))  # as earlier versions wrote it
    assert len(read_records(faulty.path)) == len(records)
