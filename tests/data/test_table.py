from pathlib import Path

import pytest
from PIL import Image

from lookalike import data
from lookalike.data.table import read_table


def write(folder: Path, text: str, encoding: str = "utf-8") -> Path:
    for name in ("1.png", "2.png", "sub/3 ä.png"):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    file = folder / "list.csv"
    file.write_bytes(text.encode(encoding))
    return file


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_table(tmp_path: Path, delimiter: str, encoding: str, end: str) -> None:
    lines = ["Label,PATH,note", "wren,1.png,x", "c10,./2.png,", '"wren","sub/3 ä.png",', ""]
    table = data.load(write(tmp_path, end.join(lines).replace(",", delimiter), encoding))
    assert table.names == ("1.png", "2.png", "sub/3 ä.png")
    assert table.classes == ("c10", "wren")
    assert table.labels.tolist() == [1, 0, 1]
    assert table.splits is None
    assert table.roles is None
    assert table.image(2).size == (4, 4)


def test_splits_and_roles(tmp_path: Path) -> None:
    text = "path,label,split,role\n1.png,a,train,\n2.png,b,Test,query\nsub/3 ä.png,b,val,GALLERY\n"
    table = read_table(write(tmp_path, text))
    assert table.splits.tolist() == ["train", "test", "validation"]
    assert table.roles.tolist() == ["", "query", "gallery"]
    assert table.split("test").roles.tolist() == ["query"]


def test_missing_files_and_repetitions_are_problems(tmp_path: Path) -> None:
    table = data.load(write(tmp_path, "path,label\n1.png,a\nabsent.png,b\n2.png,b\n\n1.png,a\n"))
    assert table.names == ("1.png", "2.png")
    assert [str(problem) for problem in table.problems] == [
        "1.png: listed twice (lines 2 and 6)",
        "absent.png: no such file",
    ]


def test_other_roots_and_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    write(tmp_path / "pictures", "")
    file = tmp_path / "list.csv"
    file.write_text(f"path,label\n1.png,a\n{tmp_path}/pictures/2.png,b\n")
    assert len(data.load(file, root=tmp_path / "pictures").names) == 2
    assert data.load(file).names == (f"{tmp_path}/pictures/2.png",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; expected a header with the columns path and label"),
        ("path,label\n", "lists no pictures"),
        ("1.png,a\n2.png,b\n", r"must name the columns path and label, got '1\.png, a'"),
        ("path,labels\n1.png,a\n", "rename 'labels' to 'label'"),
        ("path,label,path\n1.png,a,2.png\n", "the column path occurs twice"),
        ("path,label\n1.png,a\n2.png\n", "line 3: expected 2 fields as in the header, got 1"),
        ("path,label\n1.png,a\n2.png,b,c\n", "line 3: expected 2 fields as in the header, got 3"),
        ("path,label\n1.png,\n,b\n", "line 2: label is empty; line 3: path is empty$"),
        ("path,label,split\n1.png,a,dev\n", "line 2: split must be train, val or test, got 'dev'"),
        ("path,label,split\n1.png,a,train\n2.png,b,\n", "line 3: split must be train, val or test, got ''"),
        ("path,label,role\n1.png,a,queries\n", "line 2: role must be query, gallery, both or empty, got 'queries'"),
        ("path,label\n1.png,a\n./1.png,b\n", r"line 3: 1\.png is 'b', but in line 2 it is 'a'"),
        ("path,label\n1.png,a\n2.png,a\n", "only one class, 'a'"),
        ('path,label\n1.png,a\n"2.png,b\n', "line 3: unexpected end of data"),
        ("path,label\n" + "1.png\n" * 9, r"\(and 6 more\)$"),
    ],
)
def test_faults_are_named_by_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.load(write(tmp_path, text))


def test_paths_written_on_windows(tmp_path: Path) -> None:
    table = data.load(write(tmp_path, "path,label\r\n1.png,a\r\nsub\\3 ä.png,b\r\n"))
    assert table.names == ("1.png", "sub/3 ä.png")


def test_other_encodings_are_named_by_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="line 2 is not UTF-8; save the file as UTF-8"):
        read_table(write(tmp_path, "path,label\nvögel.png,a\n", "latin-1"))


def test_one_class_will_do_where_nothing_is_told_apart(tmp_path: Path) -> None:
    assert len(data.load(write(tmp_path, "path,label\n1.png,a\n2.png,a\n"), fewest_classes=1)) == 2


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("path,label\n1.png,a\n2.png\n", True),
        ("path,label\nabsent.png,a\nalso.png,b\n", True),
        ("path,label\n1.png,a\n2.png,a\n", False),
        ("1.png,a\n2.png,b\n", False),
    ],
)
def test_broken_lines_are_not_bad_usage(tmp_path: Path, text: str, broken: bool) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - which kind of it is the question
        data.load(write(tmp_path, text))
    assert isinstance(caught.value, data.BrokenData) == broken
