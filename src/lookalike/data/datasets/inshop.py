"""In-shop Clothes Retrieval (DeepFashion): training classes, and other classes as queries against a gallery.

The training pictures are the split "train", without a role; queries and gallery are the split "test", with the roles
"query" and "gallery".

Reference: Liu et al., "DeepFashion: Powering Robust Clothes Recognition and Retrieval with Rich Annotations", CVPR
2016.
"""

from __future__ import annotations

from pathlib import Path

from lookalike.data.datasets.layout import DatasetSpec, SplitSize, first_existing, read_rows
from lookalike.data.files import table_of_files
from lookalike.data.pictures import Pictures

LIST = "list_eval_partition.txt"
LIST_FOLDERS = ("Eval", "Anno", ".")
SPLIT_AND_ROLE = {"train": ("train", ""), "query": ("test", "query"), "gallery": ("test", "gallery")}


def read(root: Path) -> Pictures:
    """Read the table below ``root``; no picture is opened."""
    file = _list(root)
    names: list[str] = []
    class_of: list[str] = []
    splits: list[str] = []
    roles: list[str] = []
    # the first two lines are the number of pictures and the header "image_name item_id evaluation_status"
    for line, (name, item, status) in enumerate(read_rows(file, 3, skip=2), start=3):
        if status not in SPLIT_AND_ROLE:
            raise ValueError(f"{file}: line {line} must end in train, query or gallery, got {status!r}")
        split, role = SPLIT_AND_ROLE[status]
        names.append(name)
        class_of.append(item)
        splits.append(split)
        roles.append(role)
    return table_of_files("inshop", _pictures_folder(root), names, class_of, splits=splits, roles=roles)


def missing(root: Path) -> list[str]:
    """List the required files that ``root`` lacks."""
    lacking = []
    if not _list(root).exists():
        lacking.append(f"Eval/{LIST}")
    if not (_pictures_folder(root) / "img").is_dir():
        lacking.append("img/")
    return lacking


def _list(root: Path) -> Path:
    return first_existing([root / folder / LIST for folder in LIST_FOLDERS])


def _pictures_folder(root: Path) -> Path:
    if not (root / "img").is_dir() and (root / "Img" / "img").is_dir():
        return root / "Img"
    return root


INSHOP = DatasetSpec(
    name="inshop",
    title="In-shop Clothes Retrieval",
    page="https://mmlab.ie.cuhk.edu.hk/projects/DeepFashion/InShopRetrieval.html",
    classes=7_982,
    pictures=52_712,
    sizes={
        "train": SplitSize(3_997, 25_882),
        "test": SplitSize(3_985, 26_830),
        "query": SplitSize(3_985, 14_218),
        "gallery": SplitSize(3_985, 12_612),
    },
    files=("Eval/list_eval_partition.txt", "img/"),
    folders=("In-shop Clothes Retrieval Benchmark", "In_shop", "InShop", "inshop"),
    recognises=lambda root: _list(root).exists(),
    missing=missing,
    read=read,
    aliases=("in-shop", "deepfashion"),
    ks=(1, 10, 20, 30, 40),
)
