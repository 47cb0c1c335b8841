"""Stanford Online Products: pictures of 22,634 products from a market place, split by class.

Reference: Song et al., "Deep Metric Learning via Lifted Structured Feature Embedding", CVPR 2016.
"""

from __future__ import annotations

from pathlib import Path

from lookalike.data.datasets.layout import DatasetSpec, SplitSize, all_of, any_of, read_rows
from lookalike.data.files import table_of_files
from lookalike.data.pictures import Pictures

LISTS = {"train": "Ebay_train.txt", "test": "Ebay_test.txt"}


def read(root: Path) -> Pictures:
    """Read the table below ``root``; no picture is opened."""
    names: list[str] = []
    class_of: list[str] = []
    splits: list[str] = []
    for split, file in LISTS.items():
        for _image, product, _super_class, name in read_rows(root / file, 4, skip=1):
            names.append(name)
            class_of.append(product)
            splits.append(split)
    return table_of_files("sop", root, names, class_of, splits=splits)


SOP = DatasetSpec(
    name="sop",
    title="Stanford Online Products",
    page="https://cvgl.stanford.edu/projects/lifted_struct/",
    classes=22_634,
    pictures=120_053,
    sizes={"train": SplitSize(11_318, 59_551), "test": SplitSize(11_316, 60_502)},
    files=("Ebay_train.txt", "Ebay_test.txt", "bicycle_final/ ... toaster_final/"),
    folders=("Stanford_Online_Products",),
    recognises=any_of(*LISTS.values()),
    missing=all_of(*LISTS.values()),
    read=read,
    aliases=("stanford-online-products", "online-products"),
    ks=(1, 10, 100, 1000),
)
