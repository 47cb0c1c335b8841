"""Marks and labels over HTTP: set, shown in searches, undone, refused to readers, and bounded."""

import csv
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from server_helpers import READ, WRITE, encoded, noise

from lookalike import index
from lookalike._util.checksums import hash_bytes
from lookalike.index.marks import Marks
from lookalike.inference.model import TrainedModel
from lookalike.server import Keys, create_app
from lookalike.server.keys import Rules
from lookalike.server.quotas import Quota

ROUTES = [
    *(("GET", path) for path in ("/marks", "/marks.csv", "/marks/next", "/labels/history", "/labels.csv")),
    ("GET", "/labels/suggestions?id=a"),
    *(("POST", path) for path in ("/marks", "/marks/group", "/marks/undo")),
    *(("POST", f"/labels/{name}") for name in ("set", "metadata", "rename", "undo")),
    *(("GET", path) for path in ("/doctor", "/doctor/findings?kind=tiny", "/doctor/effect", "/doctor/corrected.csv")),
    *(("POST", path) for path in ("/doctor", "/doctor/decide", "/doctor/apply")),
    ("DELETE", "/doctor"),
]


def post(client: TestClient, path: str, picture: bytes | None = None, key: str = "", **fields: Any) -> httpx.Response:
    form: dict[str, Any] = {name.rstrip("_"): (None, str(value)) for name, value in fields.items()}
    if picture is not None:
        form["picture"] = ("p.png", picture)
    return client.post(path, files=form, headers={"X-API-Key": key} if key else {})


def shown(client: TestClient, **query: Any) -> dict[str, tuple[int | None, str | None]]:
    answer = post(client, "/search", **query)
    assert answer.status_code == 200
    return {hit["id"]: (hit["mark"], hit["verdict"]) for hit in answer.json()["hits"]}


def test_mark_a_result_and_undo(client: TestClient, idx: index.Index) -> None:
    query = idx.items()[0].id
    first, second = list(shown(client, id=query))[:2]
    assert shown(client, id=query)[first] == (None, None)
    answer = post(client, "/marks", id=query, with_=first, verdict="same").json()
    assert (answer["mark"], answer["marks"], answer["count"]) == (1, 1, 1)
    assert post(client, "/marks", id=query, with_=second, verdict="skip").json()["mark"] == 2
    assert (shown(client, id=query)[first], shown(client, id=query)[second]) == ((1, "same"), (2, "skip"))
    assert shown(client, id=first, k=100)[query] == (1, "same")  # the other way round
    assert shown(client, id=query, crop="0,0,0.5,1", k=100)[first] == (None, None)  # a mark is about the whole picture
    post(client, "/marks", id=first, with_=query, verdict="different")
    assert shown(client, id=query)[first] == (3, "different")
    assert post(client, "/marks/undo", mark=3).json() == {"undone": 1, "count": 2}
    assert post(client, "/marks/undo", mark=3).json() == {"undone": 0, "count": 2}
    assert shown(client, id=query)[first] == (1, "same")
    listed = client.get("/marks").json()
    assert [(mark["mark"], mark["state"]) for mark in listed["marks"]] == [
        (3, "undone"),
        (2, "skipped"),
        (1, "in force"),
    ]
    assert (listed["pairs"], listed["expired"], listed["contradictions"]) == (1, 0, [])
    assert listed["marks"][2]["query"] == {"id": query, "name": idx.items()[0].file.name}
    page = client.get("/marks?limit=2").json()
    assert page["next"] == 2
    assert [mark["mark"] for mark in client.get("/marks?limit=2&before=2").json()["marks"]] == [1]
    assert Marks(idx.path).history()[0].model == idx.fingerprint


def test_an_uploaded_query_is_kept(client: TestClient, idx: index.Index, upload: bytes) -> None:
    other = idx.items()[3].id
    answer = post(client, "/marks", upload, with_=other, verdict="same").json()
    assert answer["query"] == hash_bytes(upload)
    kept = Marks(idx.path).picture(answer["query"])
    assert kept is not None
    assert kept.read_bytes().startswith(b"\xff\xd8")  # re-encoded
    again = post(client, "/marks", content=answer["query"], with_=idx.items()[4].id, verdict="different")
    assert again.json()["query"] == answer["query"]
    marked = shown(client, picture=upload, k=100)
    assert (marked[other], marked[idx.items()[4].id]) == ((1, "same"), (2, "different"))
    assert client.get("/marks").json()["pairs"] == 2
    unknown = post(client, "/marks", content="0" * 32, with_=other, verdict="same")
    assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "not_found")
    kept.unlink()
    assert client.get("/marks").json()["expired"] in (0, 2)  # cached until the next change
    post(client, "/marks/undo", mark=2)
    assert client.get("/marks").json()["expired"] == 1
    # once it is in the index, the marks count again
    added = post(client, "/items", upload, label="new").json()["id"]
    listed = client.get("/marks").json()
    assert (listed["expired"], listed["pairs"]) == (0, 1)
    assert listed["marks"][1]["query"]["id"] == added


def test_groups_and_contradictions(client: TestClient, idx: index.Index) -> None:
    ids = [item.id for item in idx.items()[:4]]
    answer = post(client, "/marks/group", ids=",".join(ids[:3]), verdict="same").json()
    assert (answer["mark"], answer["marks"]) == (1, 3)
    post(client, "/marks", id=ids[2], with_=ids[3], verdict="same")
    post(client, "/marks", id=ids[3], with_=ids[0], verdict="different")
    listed = client.get("/marks").json()
    (found,) = listed["contradictions"]
    assert found["different"]["mark"] == 5
    assert {found["different"]["query"]["id"], found["different"]["result"]["id"]} == {ids[0], ids[3]}
    assert (len(found["chain"]), found["marks"], listed["contradictory"], listed["pairs"]) == (2, 5, 5, 0)
    assert post(client, "/marks/undo", mark=2).json()["undone"] == 3
    assert client.get("/marks").json()["pairs"] == 2
    rows = list(csv.DictReader(io.StringIO(client.get("/marks.csv").text)))
    assert [row["state"] for row in rows] == ["undone"] * 3 + ["in force"] * 2


def test_the_queue(client: TestClient, idx: index.Index) -> None:
    answer = client.get("/marks/next").json()
    assert len(answer["questions"]) == 20
    assert "no calibration" in answer["note"]
    first = answer["questions"][0]
    post(client, "/marks", id=first["item"]["id"], with_=first["other"]["id"], verdict="same")
    asked = {(q["item"]["id"], q["other"]["id"]) for q in client.get("/marks/next?k=100").json()["questions"]}
    assert (first["item"]["id"], first["other"]["id"]) not in asked
    index.calibrate(idx)
    calibrated = client.get("/marks/next?k=3").json()
    assert len(calibrated["questions"]) == 3
    assert all(0 < question["probability"] < 1 for question in calibrated["questions"])
    assert "calibrated on the labels of this index" in calibrated["note"]


def test_labels_are_edited_in_place(client: TestClient, idx: index.Index) -> None:
    items = idx.items()
    ids = [item.id for item in items[:2]]
    answer = post(client, "/labels/set", ids=",".join(ids), label="=wren").json()
    assert (answer["edit"], answer["changed"]) == (1, 2)
    assert client.get(f"/items/{ids[0]}").json()["label"] == "=wren"
    assert {"label": "=wren", "count": 2} in client.get("/labels").json()["labels"]
    assert "=wren" in client.get("/map").json()["labels"]
    edit = post(client, "/labels/rename", label="=wren", to="robin").json()
    assert edit["changed"] == 2
    assert post(client, "/labels/metadata", id=ids[0], metadata='{"year": 2020}').json()["changed"] == 1
    assert client.get(f"/items/{ids[0]}").json()["metadata"] == {"year": 2020}
    assert "year" in {field["key"] for field in client.get("/fields").json()["fields"]}
    refused = post(client, "/labels/rename", label="class1", to="class2")
    assert (refused.status_code, "merge the two" in refused.json()["error"]["message"]) == (422, True)
    merged = post(client, "/labels/rename", label="class1", to="class2", merge="true").json()
    assert merged["changed"] > 5
    assert "class1" not in {entry["label"] for entry in client.get("/labels").json()["labels"]}
    assert post(client, "/labels/undo", edit=merged["edit"]).json()["changed"] == merged["changed"]
    history = client.get("/labels/history").json()["edits"]
    assert [entry["action"] for entry in history] == ["undo", "merge", "metadata", "rename", "label"]
    assert [entry["undone"] for entry in history] == [False, True, False, False, False]
    assert post(client, "/labels/undo", edit=merged["edit"]).status_code == 422
    rows = list(csv.DictReader(io.StringIO(client.get("/labels.csv").text)))
    assert {row["path"]: row["label"] for row in rows} == {item.path: item.label for item in idx.items()}
    assert Path(idx.path / "labels.csv").read_text() == client.get("/labels.csv").text


def test_suggestions(client: TestClient, idx: index.Index) -> None:
    item = idx.items()[0]
    answer = client.get(f"/labels/suggestions?id={item.id}").json()
    assert {one["probability"] for one in answer["suggestions"]} == {None}
    assert "lookalike calibrate" in answer["note"]
    index.calibrate(idx)
    probabilities = [
        one["probability"] for one in client.get(f"/labels/suggestions?id={item.id}").json()["suggestions"]
    ]
    assert probabilities == sorted(probabilities, reverse=True)
    assert all(0 < p < 1 for p in probabilities)
    assert client.get("/labels/suggestions?id=nobody").status_code == 404


@pytest.mark.parametrize(
    ("path", "fields", "status", "message"),
    [
        ("/marks", {"id": "nobody", "with_": "x", "verdict": "same"}, 404, "no item with this id"),
        ("/marks", {"id": "ITEM", "with_": "nobody", "verdict": "same"}, 404, "no item with this id"),
        ("/marks", {"id": "ITEM", "with_": "ITEM", "verdict": "same"}, 422, "the same content"),
        ("/marks", {"id": "ITEM", "with_": "ITEM", "verdict": "maybe"}, 422, "verdict must be one of same, different"),
        ("/marks", {"with_": "ITEM", "verdict": "same"}, 422, "send one of picture, id and content"),
        ("/marks", {"id": "ITEM", "with_": "a/b", "verdict": "same"}, 422, "with must be the id of an item"),
        ("/marks", {"content": "../x", "with_": "ITEM", "verdict": "same"}, 422, "content must be the hash"),
        ("/marks", {"picture": b"no picture", "with_": "ITEM", "verdict": "same"}, 415, "not a picture"),
        ("/marks/group", {"ids": "ITEM", "verdict": "same"}, 422, "at least two pictures"),
        ("/marks/group", {"ids": ",".join(f"i{n}" for n in range(51)), "verdict": "same"}, 422, "ids must be 1 to 50"),
        ("/marks/group", {"ids": "ITEM,nobody", "verdict": "same"}, 404, "no item with this id"),
        ("/marks/undo", {"mark": "1"}, 404, "no mark with this number"),
        ("/marks/undo", {"mark": "-1"}, 422, "mark must be a whole number"),
        ("/labels/set", {"ids": "", "label": "x"}, 422, "ids must be 1 to 400"),
        ("/labels/set", {"ids": "nobody", "label": "x"}, 404, "no item with this id"),
        ("/labels/set", {"ids": "ITEM", "label": "x" * 1001}, 422, "at most 1,000 characters"),
        ("/labels/metadata", {"id": "ITEM", "metadata": "[]"}, 422, "metadata must be a JSON object"),
        ("/labels/metadata", {"id": "ITEM", "metadata": '{"path": 1}'}, 422, "a key of metadata"),
        ("/labels/rename", {"label": "clas1", "to": "x"}, 422, "did you mean"),
        ("/labels/rename", {"label": "class1", "to": " "}, 422, "the new label is empty"),
        ("/labels/rename", {"label": "class1", "to": "x", "merge": "yes"}, 422, "merge must be true or false"),
        ("/labels/undo", {"edit": "7"}, 404, "no edit with this number"),
    ],
)
def test_what_is_refused(
    path: str, fields: dict[str, Any], status: int, message: str, shared: TestClient, shared_index: index.Index
) -> None:
    item = shared_index.items(limit=1)[0].id
    sent = {name: value.replace("ITEM", item) if isinstance(value, str) else value for name, value in fields.items()}
    answer = post(shared, path, **sent)
    assert (answer.status_code, message in answer.json()["error"]["message"]) == (status, True), answer.text
    assert shared.get("/marks").json()["marks"] == []
    assert shared.get("/labels/history").json()["edits"] == []


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_read_key_cannot_mark_or_label(method: str, path: str, locked: TestClient) -> None:
    assert locked.request(method, path).status_code == 401
    refused = locked.request(method, path, headers={"X-API-Key": READ})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "read_only")


def test_who_did_it_and_quotas(idx: index.Index, served_model: TrainedModel) -> None:
    anna, ben = WRITE, "another key for changing it"
    keys = Keys(write=(anna, ben), rules={anna: Rules(name="anna")})
    ids = [item.id for item in idx.items()[:3]]
    app = create_app(idx, served_model, keys=keys, quota=Quota(writes=4, items=1))
    with TestClient(app, base_url="http://127.0.0.1") as client:
        assert post(client, "/marks", key=anna, id=ids[0], with_=ids[1], verdict="same").status_code == 200
        assert post(client, "/labels/set", key=anna, ids=ids[0], label="x").status_code == 200
        assert post(client, "/marks", key=ben, id=ids[0], with_=ids[1], verdict="different").status_code == 200
        first, second = client.get("/marks", headers={"X-API-Key": ben}).json()["marks"][::-1]
        assert (first["by"], first["state"], second["state"]) == ("anna", "overruled", "in force")
        assert second["by"].startswith("key ")
        assert ben not in second["by"]
        assert client.get("/labels/history", headers={"X-API-Key": ben}).json()["edits"][0]["by"] == "anna"
        # 4 writes per key and minute; marks do not count as added pictures
        codes = [post(client, "/marks", key=anna, id=ids[0], with_=ids[2], verdict="same").status_code for _ in "abc"]
        assert codes == [200, 200, 429]


def test_names_in_a_key_file(tmp_path: Path) -> None:
    file = tmp_path / "write.key"
    file.write_text(f"{WRITE}\n    name: anna\n    collections: birds\n")
    keys = Keys.load(None, file, {})
    assert (keys.grant(WRITE).name, keys.grant(WRITE).collections) == ("anna", ("birds",))
    file.write_text(f"{WRITE}\n    name: {'x' * 65}\n")
    with pytest.raises(ValueError, match="line 2: name must be a printable text of at most 64 characters"):
        Keys.load(None, file, {})


def test_two_clients_at_once(client: TestClient, idx: index.Index, served_model: TrainedModel) -> None:
    """Another server on the same index sees each mark and label at its next answer."""
    ids = [item.id for item in idx.items()[:2]]
    with index.open(idx.path) as other_idx:
        app = create_app(other_idx, served_model)
        with TestClient(app, base_url="http://127.0.0.1") as other:
            post(client, "/marks", id=ids[0], with_=ids[1], verdict="same")
            post(other, "/marks", id=ids[0], with_=ids[1], verdict="different")
            assert shown(client, id=ids[0], k=200)[ids[1]] == (2, "different")
            assert [mark["state"] for mark in client.get("/marks").json()["marks"]] == ["in force", "overruled"]
            post(other, "/labels/set", ids=ids[0], label="by another")
            assert client.get(f"/items/{ids[0]}").json()["label"] == "by another"
            edit = post(client, "/labels/set", ids=ids[0], label="last").json()
            assert post(other, "/labels/undo", edit=edit["edit"]).json()["changed"] == 1
            assert client.get(f"/items/{ids[0]}").json()["label"] == "by another"


def test_damaged_marks_do_not_stop_searches(client: TestClient, idx: index.Index) -> None:
    (idx.path / "marks.sqlite").write_bytes(b"no database at all" * 100)
    assert len(shown(client, id=idx.items()[0].id)) == 12
    refused = client.get("/marks")
    assert refused.status_code == 503
    assert str(idx.path) not in refused.text


def test_kept_pictures_are_bounded(client: TestClient, idx: index.Index, monkeypatch: pytest.MonkeyPatch) -> None:
    from lookalike.index import kept_pictures

    monkeypatch.setattr(kept_pictures, "MOST_KEPT", 1)
    other = idx.items()[0].id
    assert post(client, "/marks", encoded(noise(20, 20)), with_=other, verdict="same").status_code == 200
    refused = post(client, "/marks", encoded(noise(20, 20, 8)), with_=other, verdict="same")
    assert (refused.status_code, "keeps at most 1 marked" in refused.json()["error"]["message"]) == (422, True)
