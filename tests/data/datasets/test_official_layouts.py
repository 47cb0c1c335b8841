"""Tiny stand-ins in the official layouts."""

import gzip
import pickle
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from lookalike import data
from lookalike.data import datasets
from lookalike.data.datasets.mnist import read_idx


def put(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path, format="JPEG")


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def class_of(table: data.Pictures) -> dict[str, str]:
    return {name: table.classes[label] for name, label in zip(table.names, table.labels, strict=True)}


def split_of(table: data.Pictures) -> dict[str, str]:
    return dict(zip(table.names, table.splits.tolist(), strict=True))


def make_cub(root: Path) -> Path:
    put(root / "images", "001.Wren/a.jpg", "100.Robin/b.jpg", "101.Owl/c.jpg", "001.Wren/d.jpg")
    write(
        root,
        {
            "images.txt": "1 001.Wren/a.jpg\n2 100.Robin/b.jpg\n3 101.Owl/c.jpg\n4 001.Wren/d.jpg\n",
            "image_class_labels.txt": "1 1\n2 100\n3 101\n4 1\n",
            "classes.txt": "1 001.Wren\n2 002.Absent\n100 100.Robin\n101 101.Owl\n",
        },
    )
    return root


def test_cub(tmp_path: Path) -> None:
    root = make_cub(tmp_path / "CUB_200_2011")
    for table in (
        data.load(root),
        data.load("cub", root=root),
        data.load(f"cub:{tmp_path}"),
        data.load(f"CUB200:{root}"),
    ):
        assert table.name == "cub"
        assert table.classes == ("001.Wren", "100.Robin", "101.Owl")
        assert table.labels.tolist() == [0, 1, 2, 0]
        assert table.splits.tolist() == ["train", "train", "test", "train"]
    (root / "images/101.Owl/c.jpg").unlink()
    assert data.load(root).problems == (("101.Owl/c.jpg", "no such file"),)


def test_recall_is_reported_at_the_ranks_of_the_papers() -> None:
    names = ("cub", "cars196", "stanford-online-products", "in-shop", "my_pictures")
    found = [data.datasets.recall_ranks(name) for name in names]
    usual = (1, 2, 4, 8)
    assert found == [usual, usual, (1, 10, 100, 1000), (1, 10, 20, 30, 40), usual]


def test_cub_with_faults(tmp_path: Path) -> None:
    root = make_cub(tmp_path)
    (root / "image_class_labels.txt").write_text("1 1\n2\n")
    with pytest.raises(ValueError, match=r"image_class_labels\.txt: line 2 must have 2 fields, got '2'"):
        data.load(root)
    (root / "image_class_labels.txt").write_text("1 1\n2 x\n")
    with pytest.raises(ValueError, match="expected a whole number, got 'x'"):
        data.load(root)
    (root / "image_class_labels.txt").write_text("1 1\n2 100\n3 77\n4 1\n")
    with pytest.raises(ValueError, match=r"gives 101.Owl/c\.jpg no class that classes\.txt lists"):
        data.load(root)
    (root / "image_class_labels.txt").unlink()
    with pytest.raises(ValueError, match=r"is not complete: image_class_labels\.txt missing"):
        data.load(root)


def records(rows: list[tuple[object, ...]], fields: list[str]) -> np.ndarray:
    array = np.empty((1, len(rows)), dtype=[(field, object) for field in fields])
    for i, row in enumerate(rows):
        array[0, i] = row
    return array


CAR_NAMES = np.array([f"Car {i}" for i in range(1, 197)], dtype=object)


def make_cars_in_one(root: Path) -> Path:
    put(root / "car_ims", "000001.jpg", "000002.jpg", "000003.jpg")
    rows = [
        ("car_ims/000001.jpg", 1, 2, 3, 4, 1, 0),
        ("car_ims/000002.jpg", 1, 2, 3, 4, 98, 1),
        ("car_ims/000003.jpg", 1, 2, 3, 4, 99, 0),
    ]
    fields = ["relative_im_path", "bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "test"]
    savemat(root / "cars_annos.mat", {"annotations": records(rows, fields), "class_names": CAR_NAMES[None]})
    return root


def make_cars_devkit(root: Path, test_list: str, nested: bool) -> Path:
    inner = {part: f"{part}/{part}" if nested else part for part in ("cars_train", "cars_test")}
    put(root, f"{inner['cars_train']}/00001.jpg", f"{inner['cars_train']}/00002.jpg", f"{inner['cars_test']}/00001.jpg")
    fields = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "class", "fname"]
    (root / "devkit").mkdir()
    train = records([(1, 2, 3, 4, 150, "00001.jpg"), (1, 2, 3, 4, 3, "00002.jpg")], fields)
    savemat(root / "devkit/cars_train_annos.mat", {"annotations": train})
    savemat(root / test_list, {"annotations": records([(1, 2, 3, 4, 3, "00001.jpg")], fields)})
    savemat(root / "devkit/cars_meta.mat", {"class_names": CAR_NAMES[None]})
    return root


def test_cars_in_one_folder(tmp_path: Path) -> None:
    table = data.load(make_cars_in_one(tmp_path))
    assert table.name == "cars"
    assert table.classes == ("Car 1", "Car 98", "Car 99")
    assert split_of(table) == {
        "car_ims/000001.jpg": "train",
        "car_ims/000002.jpg": "train",  # although its picture is of the official test part
        "car_ims/000003.jpg": "test",
    }


@pytest.mark.parametrize("test_list", ["devkit/cars_test_annos_withlabels.mat", "cars_test_annos_withlabels.mat"])
@pytest.mark.parametrize("nested", [False, True])
def test_cars_with_a_devkit(tmp_path: Path, test_list: str, nested: bool) -> None:
    table = data.load(make_cars_devkit(tmp_path, test_list, nested))
    assert not table.problems
    train, test = ("cars_train/cars_train", "cars_test/cars_test") if nested else ("cars_train", "cars_test")
    assert class_of(table) == {
        f"{train}/00001.jpg": "Car 150",
        f"{train}/00002.jpg": "Car 3",
        f"{test}/00001.jpg": "Car 3",
    }
    assert split_of(table) == {
        f"{train}/00001.jpg": "test",
        f"{train}/00002.jpg": "train",
        f"{test}/00001.jpg": "train",
    }


def test_cars_with_faults(tmp_path: Path) -> None:
    root = make_cars_devkit(tmp_path, "devkit/cars_test_annos_withlabels.mat", False)
    (root / "devkit/cars_test_annos_withlabels.mat").rename(root / "devkit/cars_test_annos.mat")
    with pytest.raises(ValueError, match=r"not complete: devkit/cars_test_annos_withlabels\.mat missing"):
        data.load(root)
    unlabelled = records([(1, 2, 3, 4, "00001.jpg")], ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2", "fname"])
    savemat(root / "cars_test_annos_withlabels.mat", {"annotations": unlabelled})
    with pytest.raises(ValueError, match=r"must have the fields fname and class, got bbox_x1"):
        data.load(root)
    (root / "cars_test_annos_withlabels.mat").write_text("nothing")
    with pytest.raises(ValueError, match="not a readable Matlab file"):
        data.load(root)


def test_products(tmp_path: Path) -> None:
    put(tmp_path, "bicycle_final/1_0.JPG", "bicycle_final/1_1.JPG", "sofa_final/2_0.JPG")
    header = "image_id class_id super_class_id path\n"
    write(
        tmp_path,
        {
            "Ebay_train.txt": f"{header}1 1 1 bicycle_final/1_0.JPG\n2 1 1 bicycle_final/1_1.JPG\n",
            "Ebay_test.txt": f"{header}3 11319 10 sofa_final/2_0.JPG\n",
        },
    )
    table = data.load(tmp_path)
    assert table.name == "sop"
    assert table.classes == ("1", "11319")
    assert table.splits.tolist() == ["train", "train", "test"]
    assert not table.problems
    (tmp_path / "Ebay_test.txt").write_text(f"{header}3 11319 10\n")
    with pytest.raises(ValueError, match=r"Ebay_test\.txt: line 2 must have 4 fields"):
        data.load(tmp_path)


@pytest.mark.parametrize(("list_folder", "picture_folder"), [("Eval", "."), (".", "."), ("Eval", "Img")])
def test_inshop(tmp_path: Path, list_folder: str, picture_folder: str) -> None:
    listed = [
        ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
        ("img/WOMEN/Tees/id_00000001/01_1_front.jpg", "id_00000001", "query"),
        ("img/WOMEN/Tees/id_00000001/01_2_side.jpg", "id_00000001", "gallery"),
    ]
    put(tmp_path / picture_folder, *(name for name, _, _ in listed))
    lines = ["3", "image_name   item_id  evaluation_status", *("   ".join(row) for row in listed)]
    write(tmp_path, {f"{list_folder}/list_eval_partition.txt": "\n".join(lines) + "\n"})
    table = data.load(tmp_path)
    assert table.name == "inshop"
    assert table.names == tuple(name for name, _, _ in listed)
    assert table.classes == ("id_00000001", "id_00000002")
    assert table.splits.tolist() == ["train", "test", "test"]
    assert table.roles.tolist() == ["", "query", "gallery"]
    assert table.split("test").classes == ("id_00000001",)
    write(tmp_path, {f"{list_folder}/list_eval_partition.txt": "1\nheader\nimg/a.jpg id_1 valid\n"})
    with pytest.raises(ValueError, match="line 3 must end in train, query or gallery, got 'valid'"):
        data.load(tmp_path)


@pytest.mark.parametrize("parts", [("trainval", "test"), ("train", "val", "test")])
def test_aircraft(tmp_path: Path, parts: tuple[str, ...]) -> None:
    root = tmp_path / "fgvc-aircraft-2013b"
    put(root / "data/images", "0000001.jpg", "0000002.jpg", "0000003.jpg", "0000004.jpg")
    lines = [["0000001 707-320"], ["0000002 F/A-18"], ["0000003 Model B200", "0000004 707-320"]]
    lines = [lines[0] + lines[1], lines[2]] if len(parts) == 2 else lines
    write(root / "data", {"variants.txt": "707-320\n727-200\nF/A-18\nModel B200\n"})
    for part, rows in zip(parts, lines, strict=True):
        write(root / "data", {f"images_variant_{part}.txt": "\n".join(rows) + "\n"})
    for source in (root, root / "data", f"aircraft:{tmp_path}"):
        table = data.load(source)
        assert table.name == "aircraft"
        assert class_of(table) == {
            "0000001.jpg": "707-320",
            "0000002.jpg": "F/A-18",
            "0000003.jpg": "Model B200",
            "0000004.jpg": "707-320",
        }
        assert table.splits.tolist() == ["train", "test", "test", "train"]
        assert not table.problems


RNG = np.random.default_rng(0)
CIFAR = {split: (RNG.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), RNG.permutation(n) % 3) for split, n in
         (("train", 10), ("test", 4))}  # fmt: skip
TEN = ["airplane", "automobile", "bird"]


def flat(pixels: np.ndarray) -> np.ndarray:
    return pixels.transpose(0, 3, 1, 2).reshape(len(pixels), -1)


def cifar_agrees(table: data.Pictures, names: list[str]) -> None:
    i = 0
    assert table.classes == tuple(names)
    for split, (pixels, labels) in CIFAR.items():
        for picture, label in zip(pixels, labels, strict=True):
            np.testing.assert_array_equal(np.asarray(table.image(i)), picture)
            assert (table.labels[i], table.splits[i]) == (label, split)
            i += 1
    assert len(table) == i
    assert table.key(0) != table.key(1)
    assert pickle.loads(pickle.dumps(table)).key(0) == table.key(0)


def batches(split: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
    pixels, labels = CIFAR[split]
    if split == "test":
        return [("test_batch", pixels, labels)]
    return [(f"data_batch_{i + 1}", pixels[2 * i : 2 * i + 2], labels[2 * i : 2 * i + 2]) for i in range(5)]


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("as_bytes", [True, False])
def test_cifar10_python(tmp_path: Path, protocol: int, as_bytes: bool) -> None:
    key = (lambda text: text.encode()) if as_bytes else str  # bytes is what files of Python 2 give
    for split in CIFAR:
        for name, pixels, labels in batches(split):
            content = {key("data"): flat(pixels), key("labels"): labels.tolist(), key("batch_label"): key("of 5")}
            (tmp_path / name).write_bytes(pickle.dumps(content, protocol))
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({key("label_names"): [key(name) for name in TEN]}, protocol))
    cifar_agrees(data.load(tmp_path), TEN)


def test_cifar10_binary(tmp_path: Path) -> None:
    for split in CIFAR:
        for name, pixels, labels in batches(split):
            rows = np.concatenate([labels[:, None].astype(np.uint8), flat(pixels)], 1)
            (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    (tmp_path / "batches.meta.txt").write_text("\n".join(TEN) + "\n\n")
    cifar_agrees(data.load(tmp_path), TEN)
    (tmp_path / "test_batch.bin").write_bytes(b"\0" * 5000)
    with pytest.raises(ValueError, match=r"test_batch\.bin is truncated: expected a multiple of 3073 bytes, got 5,000"):
        data.load(tmp_path)


@pytest.mark.parametrize("binary", [False, True])
def test_cifar100(tmp_path: Path, binary: bool) -> None:
    names = ["apple", "aquarium_fish", "baby"]
    for split, (pixels, labels) in CIFAR.items():
        if binary:
            coarse = np.full((len(labels), 1), 99, np.uint8)
            rows = np.concatenate([coarse, labels[:, None].astype(np.uint8), flat(pixels)], 1)
            (tmp_path / f"{split}.bin").write_bytes(rows.tobytes())
        else:
            content = {b"data": flat(pixels), b"fine_labels": labels.tolist(), b"coarse_labels": [99] * len(labels)}
            (tmp_path / split).write_bytes(pickle.dumps(content, 2))
    if binary:
        (tmp_path / "fine_label_names.txt").write_text("\n".join(names) + "\n")
    else:
        (tmp_path / "meta").write_bytes(pickle.dumps({b"fine_label_names": [name.encode() for name in names]}, 2))
    table = data.load(tmp_path)
    assert table.name == "cifar100"
    cifar_agrees(table, names)


def python2_pickle(pixels: np.ndarray, labels: np.ndarray) -> bytes:
    """What Python 2 wrote, opcode by opcode: its strings are bytes, and numpy's parts have their old names."""
    array = (
        *(b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR",),
        *(b"(K\x01(", b"K" + bytes([len(pixels)]), b"M\x00\x0ct"),
        *(b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89",),
        *(b"T" + struct.pack("<i", pixels.size), flat(pixels).tobytes(), b"tb"),
    )
    numbers = b"".join(b"K" + bytes([label]) for label in labels)
    return b"\x80\x02}(U\x04data" + b"".join(array) + b"U\x0bfine_labels](" + numbers + b"eu."


def test_cifar_as_python_2_wrote_it(tmp_path: Path) -> None:
    for split, (pixels, labels) in CIFAR.items():
        (tmp_path / split).write_bytes(python2_pickle(pixels, labels))
    names = b"".join(b"U" + bytes([len(name)]) + name.encode() for name in TEN)
    (tmp_path / "meta").write_bytes(b"\x80\x02}(U\x10fine_label_names](" + names + b"eu.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cifar_agrees(data.load(tmp_path), TEN)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (print, ("this must never run",))


def test_pickles_can_run_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("train", "test", "meta"):
        (tmp_path / name).write_bytes(pickle.dumps({"data": Evil(), "fine_label_names": Evil()}))
    with pytest.raises(ValueError, match=r"meta is not a readable CIFAR file: it asks for builtins\.print"):
        data.load(tmp_path)
    assert capsys.readouterr().out == ""
    (tmp_path / "meta").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="meta is not a readable CIFAR file"):
        data.load(tmp_path)


def test_cifar_as_class_folders(tmp_path: Path) -> None:
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    put(tmp_path, *(f"{split}/{name}/0.png" for split in ("train", "test") for name in names))
    table = data.load(tmp_path)
    assert table.name == "cifar10"
    assert len(table.split("test").classes) == 10


def test_a_file_that_happens_to_be_called_like_one_of_cifars_decides_nothing(tmp_path: Path) -> None:
    put(tmp_path, "a/1.jpg", "b/2.jpg")
    (tmp_path / "meta").touch()
    assert data.load(tmp_path).classes == ("a", "b")


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def make_mnist(root: Path, first: list[int], dash: str = "-", packed: bool = False) -> dict[str, np.ndarray]:
    root.mkdir(parents=True, exist_ok=True)
    labels = {"train": np.array([*first, 1, 2]), "t10k": np.array([3, 1])}
    pixels = {}
    for prefix, values in labels.items():
        pixels[prefix] = RNG.integers(0, 256, (len(values), 28, 28), dtype=np.uint8)
        for kind, array in (("images", pixels[prefix]), ("labels", values)):
            name = f"{prefix}-{kind}{dash}idx{array.ndim}-ubyte"
            content = idx(array)
            (root / f"{name}{'.gz' if packed else ''}").write_bytes(gzip.compress(content) if packed else content)
    return pixels


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dash", ["-", "."])
def test_mnist(tmp_path: Path, packed: bool, dash: str) -> None:
    pixels = make_mnist(tmp_path / "MNIST/raw", [5, 0, 4, 1, 9], dash, packed)
    for source in (tmp_path / "MNIST/raw", f"mnist:{tmp_path}"):
        table = data.load(source)
        assert table.name == "mnist"
        assert table.classes == ("0", "1", "2", "3", "4", "5", "9")
        assert [table.classes[label] for label in table.labels] == list("504191231")
        assert table.splits.tolist() == ["train"] * 7 + ["test"] * 2
        np.testing.assert_array_equal(np.asarray(table.image(8)), np.repeat(pixels["t10k"][1][..., None], 3, 2))


def test_the_two_mnists_are_told_apart(tmp_path: Path) -> None:
    make_mnist(tmp_path / "a", [9, 0, 0, 3, 0])
    make_mnist(tmp_path / "fashion", [1, 1, 1, 1, 1])
    make_mnist(tmp_path / "b", [1, 1, 1, 1, 1])
    assert [datasets.recognise(tmp_path / name) for name in ("a", "fashion", "b")] == [
        "fashion-mnist",
        "fashion-mnist",
        "mnist",
    ]
    assert data.load(tmp_path / "a").classes == ("T-shirt/top", "Trouser", "Pullover", "Dress", "Ankle boot")
    assert data.load("fashion-mnist", root=tmp_path / "b").classes == ("Trouser", "Pullover", "Dress")


def test_idx_files_with_faults(tmp_path: Path) -> None:
    whole = idx(np.zeros((2, 3)))
    file = tmp_path / "a"
    for content, message in (
        (whole[:-1], "truncated: expected 6 more bytes, got 5"),
        (whole[:6], "truncated: expected 8 more bytes, got 2"),
        (whole + b"\0", "longer than the 6 bytes"),
        (b"\1" + whole[1:], "not an IDX file of bytes"),
        (gzip.compress(whole)[:-9], "cannot be read"),
        (b"", "truncated"),
    ):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            read_idx(file)
    make_mnist(tmp_path / "m", [5, 0, 4, 1, 9])
    (tmp_path / "m/t10k-labels-idx1-ubyte").write_bytes(idx(np.zeros(3)))
    with pytest.raises(ValueError, match="the split test has 2 pictures, but 3 labels"):
        data.load(tmp_path / "m")
