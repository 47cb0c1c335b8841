"""POST /search with examples, probabilities, groups and filters, held against the index itself."""

from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from lookalike import index
from lookalike.index.querying import Options, compose_query, find


def search(client: TestClient, picture: bytes | None = None, **fields: str) -> dict:
    form = {name: (None, value) for name, value in fields.items()}
    if picture is not None:
        form["picture"] = ("p.png", picture)  # type: ignore[assignment]
    return client.post("/search", files=form).json()


def test_several_examples_are_one_query(client: TestClient, idx: index.Index) -> None:
    one, two, three, bad = [item.id for item in idx.items(limit=40)[::10]]
    answer = search(client, id=one, like=f"{two},{three}", unlike=bad, k="5")
    query = compose_query(idx.vectors([one, two, three]), idx.vectors([bad]), distance=idx.distance)
    expected = find(idx, query, Options(k=5, without=(one, two, three, bad)))
    assert [hit["id"] for hit in answer["hits"]] == [result.hit.item.id for result in expected.results]
    assert "one whole picture" in answer["calibration"]
    alone = search(client, like=f"{one},{two}", k="3")
    assert len(alone["hits"]) == 3


def test_an_indexed_file_does_not_find_itself(client: TestClient, idx: index.Index) -> None:
    item = idx.items(limit=3)[2]
    data = item.file.read_bytes()
    answer = search(client, data, k="64")
    assert item.id not in [hit["id"] for hit in answer["hits"]]
    assert answer["left_out"] == 1
    asked = search(client, data, k="64", include_query="true")
    assert (asked["hits"][0]["id"], asked["left_out"]) == (item.id, 0)
    added = client.post("/items", files={"picture": ("new.png", data + b"\0")}).json()
    answer = search(client, data + b"\0", k="64")
    assert added["id"] not in [hit["id"] for hit in answer["hits"]]
    assert answer["left_out"] == 1
    assert search(client, data + b"\0\0")["left_out"] == 0


def test_probabilities_after_a_calibration(client: TestClient, idx: index.Index) -> None:
    items = idx.items()  # whose ids, and so their order, depend on the folder of the test
    nearest = [hits[1].distance for hits in idx.search(idx.vectors([item.id for item in items]), 2)]
    item = items[int(np.argmax(nearest))]
    plain = search(client, id=item.id)
    assert plain["hits"][0]["probability"] is None
    assert plain["p_value"] is None
    assert plain["nothing"] is False
    assert "calibrated on labels" in plain["calibration"]
    assert client.get("/model").json()["calibration"] is None
    refused = search(client, id=item.id, confidence="0.5")
    assert "a confidence needs probabilities" in refused["error"]["message"]
    calibration = index.calibrate(idx)
    answer = search(client, id=item.id, k="20")
    distances = [hit["distance"] for hit in answer["hits"]]
    others = [hit.distance for hit in idx.search(idx.vectors([item.id]), 100)[0] if hit.item.id != item.id]
    expected = calibration.probability(distances, others[:50][-1])
    assert [hit["probability"] for hit in answer["hits"]] == pytest.approx(expected.tolist())
    assert answer["p_value"] == pytest.approx(calibration.p_value(distances[0]))
    assert "labels of this index" in client.get("/model").json()["calibration"]
    level = float(np.median(expected))
    cut = search(client, id=item.id, k="20", confidence=f"{level:.6f}")
    assert len(cut["hits"]) == int((expected >= round(level, 6)).sum())
    assert search(client, id=item.id, error_rate="0.999999")["nothing"] is True


def test_groups_and_diversity(client: TestClient, idx: index.Index, tmp_path: Path) -> None:
    item = idx.items(limit=1)[0]
    vector = idx.vectors([item.id])
    copies = [index.Item(f"copy{n}", str(tmp_path / f"{n}.png"), "", {}) for n in range(2)]
    idx.add(copies, np.repeat(vector, 2, 0))
    answer = search(client, id=item.id, group="true", k="4")
    assert (answer["hits"][0]["id"], [one["id"] for one in answer["hits"][0]["duplicates"]]) == ("copy0", ["copy1"])
    assert "path" not in answer["hits"][0]["duplicates"][0]
    diverse = search(client, id=item.id, diversity="0.5", k="6")
    expected = find(idx, vector[0], Options(k=6, diversity=0.5, without=(item.id,)))
    assert [hit["id"] for hit in diverse["hits"]] == [result.hit.item.id for result in expected.results]


def test_fields_for_filters(client: TestClient, idx: index.Index) -> None:
    items = idx.items(limit=3)
    metadata = ({"place": "sea", "wild": True}, {"place": "lake"}, {"place": "lake", "n": 5, "more": [1]})
    for item, entry in zip(items, metadata, strict=True):
        idx.add([item._replace(metadata=entry)], idx.vectors([item.id]))
    client.delete(f"/items/{idx.items()[-1].id}")
    fields = {field["key"]: field for field in client.get("/fields").json()["fields"]}
    assert fields["n"] == {"key": "n", "least": 0, "most": 7, "values": []}
    assert fields["place"] == {"key": "place", "least": None, "most": None, "values": ["lake", "sea"]}
    assert fields["wild"]["values"] == ["true"]
    assert "more" not in fields


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"unlike": "a"}, "negative examples alone do not say what to look for"),
        ({"k": "3"}, "a picture is missing"),
        ({"id": "ID", "confidence": "1"}, "confidence must be between 0 and 1"),
        ({"id": "ID", "confidence": "0"}, "confidence must be between 0 and 1"),
        ({"id": "ID", "confidence": "-1"}, "confidence must be a number"),
        ({"id": "ID", "error_rate": "0"}, "error_rate must be between 0 and 1"),
        ({"id": "ID", "error_rate": "x"}, "error_rate must be a number"),
        ({"id": "ID", "diversity": "1"}, "diversity must be at least 0 and below 1"),
        ({"id": "ID", "group": "yes"}, "group must be true or false"),
        ({"id": "ID", "like": "a b"}, "like must be at most 50 ids"),
        ({"id": "ID", "like": "nobody"}, "there is no item with this id"),
    ],
)
def test_what_is_refused(client: TestClient, idx: index.Index, fields: dict[str, str], message: str) -> None:
    item = idx.items(limit=1)[0]
    sent = {name: value.replace("ID", item.id) for name, value in fields.items()}
    assert message in search(client, **sent)["error"]["message"]
