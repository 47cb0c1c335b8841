"""Marks that contradict each other: a same b, b same c, a different c.

Pictures are nodes, marks are edges. Marks are contradictory if they form a cycle with exactly one edge "different":
without any one of them, the others could all be true. So an edge "same" is contradictory if it lies on a path, without
repeated pictures, between the two pictures of an edge "different".

The edges on such paths are whole blocks (biconnected components) of the graph of "same": those between the two
pictures in the tree of blocks and cut vertices. The tree is built once (Hopcroft and Tarjan, 1973).
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class MarkedPair(NamedTuple):
    """What is known about two pictures.

    Attributes:
        first: Content of one picture; the smaller text.
        second: Content of the other.
        same: Whether they show the same thing.
        mark: Number of the mark that says so.
    """

    first: str
    second: str
    same: bool
    mark: int


class Contradiction(NamedTuple):
    """Marks that cannot all be true.

    Attributes:
        different: The pair that is marked as different.
        chain: A shortest chain of pairs, marked as same, from one of its pictures to the other.
        marks: Numbers of all marks in this contradiction, ascending: also those of other chains.
    """

    different: MarkedPair
    chain: list[MarkedPair]
    marks: list[int]


def find_contradictions(pairs: Sequence[MarkedPair]) -> list[Contradiction]:
    """Find all contradictions.

    Args:
        pairs: One for each two pictures.

    Returns:
        One contradiction for each pair that is marked as different though others connect it, in order of its mark.
    """
    blocks = _Blocks([pair for pair in pairs if pair.same])
    contradictions = []
    for pair in sorted(pairs, key=lambda pair: pair.mark):
        if pair.same:
            continue
        involved = blocks.between(pair.first, pair.second)
        if involved:
            chain = _shortest_chain(involved, pair.first, pair.second)
            marks = sorted([pair.mark, *(edge.mark for edge in involved)])
            contradictions.append(Contradiction(pair, chain, marks))
    return contradictions


class _Blocks:
    """The tree of blocks and cut vertices of a graph; each node of the graph hangs below its block."""

    def __init__(self, edges: Sequence[MarkedPair]) -> None:
        self._neighbours: dict[str, list[MarkedPair]] = {}
        for edge in edges:
            self._neighbours.setdefault(edge.first, []).append(edge)
            self._neighbours.setdefault(edge.second, []).append(edge)
        self._blocks: list[list[MarkedPair]] = []
        self._top: list[str] = []  # of each block, the node that was visited first
        self._below: dict[str, int] = {}  # node -> the block in which it is not the first
        self._depth: dict[str, int] = {}
        for node in self._neighbours:
            if node not in self._depth:
                self._visit(node)

    def between(self, first: str, second: str) -> list[MarkedPair]:
        """The edges on all paths without repeated nodes between two nodes; none if they are not connected."""
        seen: dict[int, None] = {}
        ends = [first, second]
        if not all(node in self._depth for node in ends):
            return []
        while ends[0] != ends[1]:
            deeper = int(self._depth[ends[1]] > self._depth[ends[0]])
            block = self._below.get(ends[deeper])
            if block is None:
                return []  # two roots
            seen[block] = None
            if self._below.get(ends[1 - deeper]) == block:
                break  # they meet inside this block
            ends[deeper] = self._top[block]
        return [edge for block in seen for edge in self._blocks[block]]

    def _visit(self, root: str) -> None:
        """Depth-first search from a node, without recursion."""
        self._depth[root] = 0
        lowest = {root: 0}  # depth that a node or those below it reach by one further edge
        open_edges: list[MarkedPair] = []
        stack = [(root, iter(self._neighbours[root]), -1)]  # node, its edges, mark of the edge to its parent
        while stack:
            node, edges, parent_mark = stack[-1]
            edge = next(edges, None)
            if edge is None:
                stack.pop()
                if stack:
                    parent = stack[-1][0]
                    lowest[parent] = min(lowest[parent], lowest[node])
                    if lowest[node] >= self._depth[parent]:
                        self._close_block(open_edges, parent, parent_mark)
                continue
            other = edge.second if edge.first == node else edge.first
            if edge.mark == parent_mark:
                continue
            if other not in self._depth:
                self._depth[other] = lowest[other] = len(stack)
                open_edges.append(edge)
                stack.append((other, iter(self._neighbours[other]), edge.mark))
            elif self._depth[other] < self._depth[node]:
                open_edges.append(edge)
                lowest[node] = min(lowest[node], self._depth[other])

    def _close_block(self, open_edges: list[MarkedPair], top: str, mark: int) -> None:
        """The edges since the one with this mark, inclusive, are a block."""
        block: list[MarkedPair] = []
        while not block or block[-1].mark != mark:
            block.append(open_edges.pop())
        number = len(self._blocks)
        self._blocks.append(block)
        self._top.append(top)
        for edge in block:
            for node in (edge.first, edge.second):
                if node != top:
                    self._below[node] = number


def _shortest_chain(edges: Sequence[MarkedPair], start: str, end: str) -> list[MarkedPair]:
    """Edges of a shortest path; breadth first."""
    neighbours: dict[str, list[MarkedPair]] = {}
    for edge in sorted(edges, key=lambda edge: edge.mark):
        neighbours.setdefault(edge.first, []).append(edge)
        neighbours.setdefault(edge.second, []).append(edge)
    came_by: dict[str, MarkedPair] = {}
    queue = deque([start])
    while queue and end not in came_by:
        node = queue.popleft()
        for edge in neighbours[node]:
            other = edge.second if edge.first == node else edge.first
            if other != start and other not in came_by:
                came_by[other] = edge
                queue.append(other)
    chain = []
    node = end
    while node != start:
        edge = came_by[node]
        chain.append(edge)
        node = edge.second if edge.first == node else edge.first
    return chain[::-1]
