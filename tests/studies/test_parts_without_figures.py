"""Files that draw or tell do not count for the parts of a study, so nothing in them may take part in computing one.

Found in the sources: what the calls of ``bench.part`` lead to within their file has nothing of such a file, and all
other files that they may lead to import none.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from lookalike import studies
from lookalike.studies.study import TELLING

FOLDER = Path(studies.__file__).parent
COMPUTING = sorted(file for file in FOLDER.glob("*.py") if not file.name.endswith(TELLING))
ENTRIES = {*studies.STUDIES.values(), "demo"}  # files that have a study, which no other file needs


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(name here, file of the studies) of what is imported from there, but for types."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lookalike.studies"):
            inside = (node.module or "").removeprefix("lookalike.studies").removeprefix(".")
            yield from ((each.asname or each.name, inside or each.name) for each in node.names)
        yield from imported(node)


def is_telling(module: str) -> bool:
    return f"{module}.py".endswith(TELLING)


def named(node: ast.AST) -> set[str]:
    found = (each for each in ast.walk(node) if isinstance(each, (ast.Name, ast.Attribute)))
    return {each.id if isinstance(each, ast.Name) else each.attr for each in found}


def meanings(inside: ast.AST) -> dict[str, set[str]]:
    """By name of a function or variable in here, the names that it is made of."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(inside):
        if isinstance(node, ast.FunctionDef) and node is not inside:
            found.setdefault(node.name, set()).update(named(node))
        elif isinstance(node, ast.Assign):
            for name in {name for target in node.targets for name in named(target)}:
                found.setdefault(name, set()).update(named(node.value))
    return found


def outermost(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield node
        else:
            yield from outermost(node)


def reached(tree: ast.Module) -> set[str]:
    """All names that what is given to ``bench.part`` leads to in this file."""
    functions = {each.name: named(each) for each in outermost(tree)}
    found: set[str] = set()
    for function in outermost(tree):
        means = functions | meanings(function)
        calls = [each for each in ast.walk(function) if isinstance(each, ast.Call)]
        parts = [each for each in calls if isinstance(each.func, ast.Attribute) and each.func.attr == "part"]
        waiting, own = [name for call in parts for name in named(call.args[1])], set[str]()
        while waiting:
            if (name := waiting.pop()) not in own:
                own.add(name)
                waiting += means.get(name, ())
        found |= own
    return found


@pytest.mark.parametrize("file", COMPUTING, ids=lambda file: file.stem)
def test_no_part_needs_a_file_that_only_tells(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    of = dict(imported(tree))
    telling = {name for name, module in of.items() if is_telling(module)}
    assert not telling & reached(tree), "a part would be kept although what computes it has changed"
    if file.stem not in ENTRIES:
        assert not telling, "a part of another file may lead here"
    assert not ENTRIES & set(of.values()), "these may draw, so nobody else's parts should lead there"
