"""Filters that leave nothing: what they ask for and nobody has, and what is nearest to it."""

from pathlib import Path

import pytest
from index_helpers import draw, make_items

from lookalike import index
from lookalike.index import base
from lookalike.index.suggestions import check_keys, nearest_labels
from lookalike.inference.model import TrainedModel


@pytest.mark.parametrize("store", ["faiss", "milvus"])
def test_metadata_keys_of_all_items(
    store: str, model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if store == "milvus":
        pytest.importorskip("milvus_lite", reason="NOT TESTED: Milvus is not installed")
        store = str(tmp_path / "x.db")
    monkeypatch.setattr(base, "PAGE", 7)  # 3 pages, the last of them not full
    with index.create(tmp_path / "i", model, store=store) as idx:
        assert idx.metadata_keys() == set()
        items = make_items(18)
        items[-1] = items[-1]._replace(metadata={"the-last": [1]})
        idx.add(items, draw(18))
        assert idx.metadata_keys() == {"year", "wild", "name", "the-last"}


def test_unknown_keys_are_refused_with_a_suggestion() -> None:
    for where in (None, "", "label=a, path!=b, id>c, year=3", "year!=4"):
        check_keys(where, ["year"])
    with pytest.raises(ValueError, match=r"key yaer; did you mean year\? There are id, path, label, split, year$"):
        check_keys("label=a, yaer!=3", ["year", "split"])
    with pytest.raises(ValueError, match=r"has the key zzz\. There are id, path, label$"):
        check_keys("zzz=3", [])
    with pytest.raises(ValueError, match=r"did you mean label\? There are id, label$"):
        check_keys("LABEL=3", [], ["id", "label"])
    with pytest.raises(ValueError, match=r"There are id, path, label, k00, .*, k16, \.\.\.$"):
        check_keys("zzz=3", [f"k{i:02}" for i in range(40)])


def test_nearest_labels() -> None:
    labels = ["", "Cardinal", "Red_winged_Blackbird"]
    assert nearest_labels("label=Cardnal, year=3", labels) == {"Cardnal": "Cardinal"}
    asked = "label in (CARDINAL, Cardinal, Penguin, red winged blackbird)"
    assert nearest_labels(asked, labels) == {
        "CARDINAL": "Cardinal",
        "red winged blackbird": "Red_winged_Blackbird",
    }
    for where in (None, "label!=Cardnal", "name=Cardnal", "label>Cardnal", "label=''"):
        assert nearest_labels(where, labels) == {}
