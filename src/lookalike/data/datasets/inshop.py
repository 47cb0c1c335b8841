"""In-shop Clothes Retrieval (DeepFashion): training classes, and other classes as queries against a gallery.

The training pictures are the split "train", without a role; queries and gallery are the split "test", with the roles
"query" and "gallery".

Reference: Liu et al., "DeepFashion: Powering Robust Clothes Recognition and Retrieval with Rich Annotations", CVPR
2016.
"""

from __future__ import annotations

from pathlib import Path

from lookalike.data.datasets.layout import Benchmark, Part, any_of, read_rows
from lookalike.data.files import table_of_files
from lookalike.data.pictures import Pictures

LIST = "list_eval_partition.txt"
LIST_FOLDERS = ("Eval", "Anno", ".")
PICTURE_FOLDERS = (".", "Img")  # the names in the list start with img/
SPLIT_AND_ROLE = {"train": ("train", ""), "query": ("test", "query"), "gallery": ("test", "gallery")}


def read(root: Path) -> Pictures:
    file = _list(root)
    rows = read_rows(file, 3, skip=2)  # below: the number of pictures, then image_name item_id evaluation_status
    wrong = next((i for i, row in enumerate(rows) if row[2] not in SPLIT_AND_ROLE), None)
    if wrong is not None:
        raise ValueError(f"{file}: line {wrong + 3} must end in train, query or gallery, got {rows[wrong][2]!r}")
    return table_of_files(
        "inshop",
        _pictures(root),
        [row[0] for row in rows],
        [row[1] for row in rows],
        splits=[SPLIT_AND_ROLE[row[2]][0] for row in rows],
        roles=[SPLIT_AND_ROLE[row[2]][1] for row in rows],
    )


def missing(root: Path) -> list[str]:
    lacking = [] if _list(root).exists() else [f"Eval/{LIST}"]
    return lacking + ([] if (_pictures(root) / "img").is_dir() else ["img/"])


def _list(root: Path) -> Path:
    places = [root / folder / LIST for folder in LIST_FOLDERS]
    return next((place for place in places if place.exists()), places[0])


def _pictures(root: Path) -> Path:
    places = [root / folder for folder in PICTURE_FOLDERS]
    return next((place for place in places if (place / "img").is_dir()), root)


INSHOP = Benchmark(
    name="inshop",
    title="In-shop Clothes Retrieval",
    page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    classes=7_982,
    pictures=52_712,
    parts={
        "train": Part(3_997, 25_882),
        "test": Part(3_985, 26_830),
        "query": Part(3_985, 14_218),
        "gallery": Part(3_985, 12_612),
    },
    files=("Eval/list_eval_partition.txt", "img/"),
    folders=("In-shop Clothes Retrieval Benchmark", "In_shop", "InShop", "inshop"),
    recognises=any_of(*(f"{folder}/{LIST}" for folder in LIST_FOLDERS)),
    missing=missing,
    read=read,
    aliases=("in-shop", "deepfashion"),
)
