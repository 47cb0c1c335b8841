"""Published numbers: the sums of the printed columns, single cells copied by hand, and what is doubtful about some."""

from math import isclose

import pytest

from lookalike.experiments import protocol
from lookalike.experiments.published import TABLES, Published, published, read_table
from lookalike.objectives.presets import DATA_SETS

# Added up from the printed columns, from left to right: SOP, In-shop, CUB, Cars; 512-D P@1, MAP@R, 128-D P@1, MAP@R.
ORDER = [(name, size, metric) for name in ("sop", "inshop", "cub", "cars") for size in (512, 128) for metric in "PM"]
SUMS_31 = (
    993.37, 633.26, 945.90, 575.36, 1138.07, 773.84, 1098.50, 721.66,
    865.91, 333.33, 763.18, 267.42, 1072.00, 342.30, 918.65, 236.94,
)  # fmt: skip
SUMS_51 = (
    1130.41, 709.22, 1077.01, 646.82, 1306.04, 877.63, 1261.46, 820.56,
    996.67, 383.62, 875.23, 306.45, 1237.61, 394.69, 1066.32, 274.43,
)  # fmt: skip
STDS_51 = (
    2.46, 3.31, 2.40, 2.78, 2.82, 3.82, 2.84, 3.42,
    6.86, 3.89, 5.26, 3.15, 5.09, 4.88, 5.11, 3.08,
)  # fmt: skip
# Of the two halves of 3.2 and 5.2: CUB, Cars, SOP, In-shop.
SUMS_32 = {"bn_inception": (608.20, 763.15, 712.22, 455.94), "resnet50": (622.24, 786.50, 809.60, 642.04)}
SUMS_52 = {"bn_inception": (465.41, 581.70, 552.88, 362.48), "resnet50": (741.76, 937.32, 966.36, 822.40)}
MAP_52 = {"bn_inception": (48.94, 57.78, 105.29, 124.64), "resnet50": (124.21, 126.03, 261.87, 253.81)}


def one(**keys: object) -> Published:
    found = published(**keys)  # type: ignore[arg-type]
    assert found is not None
    assert len(found) == 1, [str(each) for each in found]
    return found[0]


@pytest.mark.parametrize(("table", "rows", "sums"), [("3.1", 13, SUMS_31), ("5.1", 15, SUMS_51)])
def test_sums_of_the_fair_tables(table: str, rows: int, sums: tuple[float, ...]) -> None:
    for (data_set, size, metric), total in zip(ORDER, sums, strict=True):
        name = {"P": "P@1", "M": "MAP@R"}[metric]
        found = published(table=table, data_set=data_set, size=size, metric=name)
        assert found is not None
        assert len(found) == rows
        assert isclose(sum(each.mean for each in found), total, abs_tol=0.005), (data_set, size, name)


def test_sums_of_the_deviations() -> None:
    for (data_set, size, metric), total in zip(ORDER, STDS_51, strict=True):
        found = published(table="5.1", data_set=data_set, size=size, metric={"P": "P@1", "M": "MAP@R"}[metric])
        assert found is not None
        assert isclose(sum(each.std or 0 for each in found), total, abs_tol=0.005)
    assert all(each.std is None for table in TABLES if table != "5.1" for each in read_table(table))


@pytest.mark.parametrize(
    ("table", "metric", "sums"), [("3.2", "R@1", SUMS_32), ("5.2", "R@1", SUMS_52), ("5.2", "MAP@R", MAP_52)]
)
def test_sums_of_the_conventional_tables(table: str, metric: str, sums: dict[str, tuple[float, ...]]) -> None:
    for backbone, totals in sums.items():
        for data_set, total in zip(("cub", "cars", "sop", "inshop"), totals, strict=True):
            found = published(table=table, backbone=backbone, metric=metric, data_set=data_set) or ()
            assert isclose(sum(each.mean for each in found), total, abs_tol=0.005), (backbone, data_set)


def test_sums_of_the_small_tables() -> None:
    for data_set, thousands in (("sop", 777), ("inshop", 1023)):
        assert sum(each.mean for each in published(table="3.3", data_set=data_set) or ()) == 1000 * thousands
    for loss, total in (("c2", 351.29), ("proxy-nca++", 361.46)):
        assert isclose(sum(each.mean for each in published(table="5.4", loss=loss) or ()), total, abs_tol=0.005)
    for data_set, size, total in (
        ("sop", 512, 186.04),
        ("sop", 128, 169.84),
        ("cub", 128, 84.03),
        ("cars", 512, 101.71),
    ):
        found = published(table="5.3", data_set=data_set, size=size) or ()
        assert isclose(sum(each.mean for each in found), total, abs_tol=0.005)


def test_how_many_numbers() -> None:
    counts = {"3.1": 208, "3.2": 67, "3.3": 20, "5.1": 240, "5.2": 95, "5.3": 32, "5.4": 18}
    assert {table: len(read_table(table)) for table in TABLES} == counts


def test_no_two_numbers_have_the_same_keys() -> None:
    for table in TABLES:
        keys = [
            (v.method, v.reported_by, v.loss, v.data_set, v.backbone, v.size, v.metric, str(v.settings))
            for v in read_table(table)
        ]
        assert len(set(keys)) == len(keys)


def test_first_and_last_cells_of_the_tables() -> None:
    """Ends of rows and columns, where a slip by one would show."""
    assert one(table="3.1", loss="c1", memory=False, ccp=False, data_set="sop", size=512, metric="P@1").mean == 68.84
    assert one(table="3.1", loss="soft-triple", data_set="cars", size=128, metric="MAP@R").mean == 19.18
    assert one(table="3.1", loss="ms", ccp=True, data_set="inshop", size=128, metric="P@1").mean == 87.10
    first = one(table="5.1", loss="c1", memory=False, ccp=False, data_set="sop", size=512, metric="P@1")
    assert (first.mean, first.std, str(first)) == (69.29, 0.11, "69.29 ± 0.11")
    last = one(table="5.1", loss="proxy-anchor", pooling="gsp", data_set="cars", size=128, metric="MAP@R")
    assert (last.mean, last.std) == (19.90, 0.20)
    triplet = one(table="5.1", loss="triplet", pooling="average", data_set="cub", size=512, metric="MAP@R")
    assert (triplet.mean, triplet.std) == (23.65, 0.4)
    both = one(table="5.1", loss="c1", ccp=True, pooling="gsp", data_set="inshop", size=128, metric="MAP@R")
    assert (both.mean, both.std, both.zero_shot, both.variant) == (56.27, 0.17, True, "L")
    assert str(one(table="3.3", loss="triplet", ccp=True, data_set="sop")) == "124,000"
    assert one(table="3.2", loss="ms", ccp=True, backbone="resnet50", data_set="inshop").mean == 92.71


def test_gsp_in_the_tables_is_with_the_zero_shot_loss() -> None:
    keys = {"protocol": "fair", "loss": "c2", "pooling": "gsp", "data_set": "cub", "size": 128, "metric": "MAP@R"}
    alone = one(**keys, zero_shot=False)
    assert (alone.mean, alone.table) == (20.85, "5.3")
    both = published(**keys, zero_shot=True)  # type: ignore[arg-type]
    assert both is not None
    assert [(each.table, each.mean) for each in both] == [("5.1", 21.53), ("5.3", 21.52)]
    assert "21.53" in (both[1].note or "")
    for table in ("5.1", "5.2"):
        assert all(each.zero_shot == ("gsp" in (each.pooling or "")) for each in read_table(table))
    loss_alone = one(table="5.3", pooling="average", zero_shot=True, data_set="cub", size=128)
    assert loss_alone.mean == 21.08


def test_tables_of_the_two_chapters_are_not_mixed() -> None:
    keys = {"loss": "c2", "pooling": "average", "ccp": False, "memory": False, "data_set": "cub", "size": 128}
    chapter3 = published(**keys, metric="MAP@R", protocol="fair-ccp")  # type: ignore[arg-type]
    chapter5 = published(**keys, metric="MAP@R", protocol="fair", zero_shot=False)  # type: ignore[arg-type]
    assert [(each.table, each.mean) for each in chapter3 or ()] == [("3.1", 21.01)]
    assert [(each.table, each.mean) for each in chapter5 or ()] == [("5.1", 20.58), ("5.3", 20.58)]
    for table in TABLES:
        assert {each.table for each in read_table(table)} == {table}
    by_table = {table: {each.protocol for each in read_table(table)} for table in TABLES}
    assert by_table["3.1"].isdisjoint(by_table["5.1"])


def test_protocols_name_the_tables_that_name_them() -> None:
    """Those of a protocol's ``tables`` are the ones whose numbers were got by it."""
    of_tables = {table: read_table(table)[0].protocol for table in TABLES}
    of_protocols = {table: name for name in protocol.names() for table in protocol.load_protocol(name).tables}
    assert of_tables == of_protocols


def test_misprints_are_noted() -> None:
    cars = one(
        table="5.2", backbone="bn_inception", pooling="max+gsp", data_set="cars", metric="MAP@R", reported_by="thesis"
    )
    assert cars.mean == 36.11
    assert "misprint" in (cars.note or "")
    cub = one(table="3.1", loss="soft-triple", data_set="cub", size=512, metric="P@1")
    assert cub.mean == 66.12
    assert "68.12" in (cub.note or "")
    assert "misprint" not in (one(table="3.1", loss="soft-triple", data_set="cub", size=128, metric="P@1").note or "")


def test_what_others_report_is_told_apart() -> None:
    keys = {
        "table": "5.2",
        "loss": "c1",
        "memory": True,
        "backbone": "bn_inception",
        "data_set": "cub",
        "metric": "R@1",
    }
    assert one(**keys, reported_by="Wang et al. 2020").mean == 65.80
    assert one(**keys, reported_by="thesis", pooling="average+max").mean == 64.32
    borrowed = one(table="5.2", loss="proxy-anchor", backbone="resnet50", data_set="sop")
    assert "Seidenschwarz" in (borrowed.note or "")
    assert one(table="5.2", loss="proxy-anchor", backbone="resnet50", data_set="cub").note is None


def test_no_published_number() -> None:
    assert published(data_set="glyphs") is None
    assert published(data_set="cub", pooling="netvlad") is None
    assert published(protocol="quick") is None
    assert published(table="5.2", reported_by="Milbich et al. 2020", data_set="inshop") is None  # printed as "-"
    assert published(table="5.1", loss="c2", memory=True) is None


def test_synonyms() -> None:
    keys = {"table": "5.2", "backbone": "resnet50", "size": 512, "data_set": "sop", "pooling": "max+gsp"}
    assert one(**keys, metric="P@1") == one(**keys, metric="R@1")
    assert published(loss="ms", table="3.1") == published(loss="multi-similarity", table="3.1")
    for variant in ("S", "L"):
        assert len(published(table="3.1", loss="soft-triple", variant=variant) or ()) == 16
    assert published(table="3.1", loss="c1", ccp=True, variant="S") is None
    plain = {"table": "3.1", "loss": "c2", "memory": False, "ccp": False, "size": 128, "metric": "MAP@R"}
    assert one(**plain, data_set="sop", variant="L").mean == 42.66  # a loss that has no variants


def test_settings_of_the_screening() -> None:
    found = one(
        table="5.4",
        loss="c2",
        settings={"num_prototypes": 128, "keep": 0.7, "sharpness": 20, "zero_shot": 0.5},
    )
    assert (found.mean, found.protocol, found.size) == (35.36, "tuning", 128)
    assert one(table="5.4", loss="proxy-nca++", pooling="average").mean == 39.90


def test_values_are_percentages_of_known_data_sets() -> None:
    for table in TABLES:
        for each in read_table(table):
            assert each.data_set in DATA_SETS
            assert each.backbone in ("bn_inception", "resnet50")
            assert each.size in (128, 512)
            assert 10 < each.mean < 100 or each.metric == "steps"


def test_unknown_table() -> None:
    with pytest.raises(ValueError, match=r"^table must be one of 3\.1, .*, got '4\.1'$"):
        published(table="4.1")


@pytest.mark.parametrize("table", ["3.2", "5.2"])
def test_libc_is_found_by_its_loss(table: str) -> None:
    numbers = published(table=table, loss="libc", pooling="max") or ()
    assert {number.data_set: number.mean for number in numbers} == {
        "cub": 70.3,
        "cars": 88.1,
        "sop": 81.4,
        "inshop": 92.8,
    }
    assert {(number.reported_by, number.size) for number in numbers} == {("Seidenschwarz et al. 2021", 512)}
