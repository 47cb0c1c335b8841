"""POST /match, held against the model itself."""

import numpy as np
import pytest
from fastapi.testclient import TestClient
from server_helpers import encoded, noise

from lookalike import index
from lookalike.inference.model import TrainedModel


def test_an_item_and_another(client: TestClient, idx: index.Index, served_model: TrainedModel) -> None:
    one, other = idx.items(limit=20)[3:20:12]
    answer = client.post("/match", files={"id": (None, one.id), "with": (None, other.id)}).json()
    expected = served_model.match(one.file, other.file)
    np.testing.assert_allclose(answer["matrix"], expected.matrix, atol=1e-6)
    vectors = idx.vectors([one.id, other.id]).astype(np.float64)
    assert answer["cosine"] == pytest.approx(vectors[0] @ vectors[1], abs=1e-6)
    assert [region["cells_a"] for region in answer["regions"]] == [region.cells_a for region in expected.regions]
    assert answer["inside_share"] == pytest.approx(expected.inside_share, abs=1e-5)
    assert answer["a"] == {"rows": 4, "columns": 4, "box": [0, 0, 1, 1]}


def test_a_region_of_an_uploaded_picture(client: TestClient, idx: index.Index, served_model: TrainedModel) -> None:
    picture = noise(80, 40)
    other = idx.items(limit=1)[0]
    form = {"picture": ("p.png", encoded(picture)), "crop": (None, "0.5,0,0.5,1"), "with": (None, other.id)}
    answer = client.post("/match", files=form).json()
    expected = served_model.match(picture.crop((40, 0, 80, 40)), other.file)
    np.testing.assert_allclose(answer["matrix"], expected.matrix, atol=1e-6)
    assert answer["a"]["box"] == pytest.approx([0.5, 0, 0.5, 1])


def test_what_is_refused(client: TestClient, idx: index.Index) -> None:
    item = idx.items(limit=1)[0]
    for form, status, message in (
        ({"id": (None, item.id)}, 422, "with must be the id of an item"),
        ({"id": (None, item.id), "with": (None, "../x y")}, 422, "with must be the id"),
        ({"id": (None, item.id), "with": (None, "nobody")}, 404, "no item with this id"),
        ({"with": (None, item.id)}, 422, "a picture is missing"),
    ):
        answer = client.post("/match", files=form)
        assert answer.status_code == status
        assert message in answer.json()["error"]["message"]
