"""One table in four forms."""

import csv
import io

import pytest

from lookalike.report.tables import BOLD, UNDERLINED, Column, Entry, Line, Table, latex_escape, number, words


def example() -> Table:
    columns = [Column("method", "left"), Column("MAP@R, %", best="most"), Column("ms", best="least")]
    rows = [("a_b", 20.0, 0.5, 7.0), ("c & d", 21.0, None, 5.0), ("<e>", 19.0, 0.25, 6.0)]
    lines = [Line([words(name), number(value, spread), number(ms, digits=1)]) for name, value, spread, ms in rows]
    return Table(columns, lines, "50% of it", ["a note"])


def test_ranks() -> None:
    assert example().ranks() == [[0, 2, 0], [0, 1, 1], [0, 0, 2]]


def test_ranks_are_by_group_and_shared_by_entries_that_look_the_same() -> None:
    values = [("x", 1.004), ("x", 1.001), ("x", 0.9), ("x", 0.5), ("y", 7.0), ("z", 3.0), ("z", 3.0)]
    lines = [Line([number(value)], group) for group, value in values]
    table = Table([Column("v", best="most")], lines)
    assert [rank for [rank] in table.ranks()] == [1, 1, 2, 0, 0, 0, 0]
    unranked = [Line([number(9.0, ranked=False)]), Line([number(2.0)]), Line([number(1.0)]), Line([number(None)])]
    assert Table([Column("v", best="most")], unranked).ranks() == [[0], [1], [2], [0]]
    assert Table([Column("v")], unranked).ranks() == [[0]] * 4


def test_text() -> None:
    assert example().text().splitlines() == [
        "50% of it",
        "method       MAP@R, %    ms",
        "------  -------------  ----",
        "a_b     20.00 ± 0.50~   7.0",
        "c & d          21.00*  5.0*",
        "<e>      19.00 ± 0.25  6.0~",
        "* best, ~ second best",
        "a note",
    ]
    coloured = example().text(colour=True)
    assert f"{BOLD}21.00" in coloured
    assert f"{UNDERLINED}20.00 ± 0.50" in coloured
    assert "*" not in coloured


def test_a_rule_stands_between_groups() -> None:
    lines = [Line([words("a")], "x"), Line([words("b")], "x"), Line([words("c")], "y")]
    table = Table([Column("n", "left")], lines)
    assert table.text().splitlines() == ["n", "-", "a", "b", "-", "c"]
    assert table.latex().count("\\midrule") == 2
    assert table.html().count("<tbody>") == 2


def test_csv_has_values_and_spreads() -> None:
    rows = list(csv.reader(io.StringIO(example().csv())))
    assert rows[0] == ["method", "MAP@R, %", "MAP@R, % std", "ms"]
    assert rows[1:] == [["a_b", "20", "0.5", "7"], ["c & d", "21", "", "5"], ["<e>", "19", "0.25", "6"]]


def test_csv_does_not_run_in_a_spreadsheet() -> None:
    lines = [Line([words("=1+1"), number(-2.5)]), Line([words("@x"), number(None)])]
    rows = list(csv.reader(io.StringIO(Table([Column("a"), Column("b")], lines).csv())))
    assert rows[1:] == [["'=1+1", "-2.5"], ["'@x", ""]]


def test_latex() -> None:
    lines = example().latex().splitlines()
    assert lines[:5] == [
        "% 50% of it",
        "\\begin{tabular}{lrr}",
        "\\toprule",
        "method & MAP@R, \\% & ms \\\\",
        "\\midrule",
    ]
    assert lines[5] == "a\\_b & \\underline{20.00 $\\pm$ 0.50} & 7.0 \\\\"
    assert lines[6] == "c \\& d & \\textbf{21.00} & \\textbf{5.0} \\\\"
    assert lines[7].startswith("\\textless{}e\\textgreater{} &")
    assert lines[8:] == ["\\bottomrule", "\\end{tabular}", "% a note"]


def test_latex_escapes_once() -> None:
    assert latex_escape("\\{x}~^$") == r"\textbackslash{}\{x\}\textasciitilde{}\textasciicircum{}\$"


def test_html() -> None:
    html = example().html()
    assert "&lt;e&gt;" in html
    assert "<e>" not in html
    assert "<b>21.00</b>" in html
    assert "<u>20.00 ± 0.50</u>" in html
    hinted = Table([Column("n")], [Line([words("a", hint='"quoted" <b>')])]).html()
    assert 'title="&quot;quoted&quot; &lt;b&gt;"' in hinted


def test_a_page_says_the_title_unless_a_heading_has_said_it() -> None:
    table = Table([Column("MAP@R 128-D, %")], [Line([number(1.0)])], title="Costs & more")
    assert "<caption>Costs &amp; more</caption>" in table.html()
    assert "caption" not in table.html(titled=False)
    assert '>MAP@R <span class="word">128-D,</span> %</th>' in table.html()


def test_a_negative_number_has_a_minus_in_latex() -> None:
    table = Table([Column("a-b"), Column("n")], [Line([words("-x"), number(-0.5, 0.25)])])
    assert "-x & $-$0.50 $\\pm$ 0.25 \\\\" in table.latex()


def test_numbers() -> None:
    assert number(-0.001).text == "0.00"
    assert number(0.5, sign=True).text == "+0.50"
    assert number(1234.5, digits=0).text == "1,234"
    assert number(None) == Entry("–")  # noqa: RUF001


def test_a_line_must_fit() -> None:
    with pytest.raises(ValueError, match="must have 2 entries, one for each column, got 1"):
        Table([Column("a"), Column("b")], [Line([words("x")])])
