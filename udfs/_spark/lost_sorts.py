"""Finds a sort that does not reach an operator: Sail sorts for a limit, and needs no order for mapInArrow.

What Sail makes of a query shows in its optimized plan. It is a text, with a node a line, indented below the node that
reads it.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from pyspark.sql import types as spark

from ._compat import engine_of
from .schemas import mapped

_NODE = re.compile(r"( *)(\w[\w ]*?)(?::(?: (.*))?)?$")
_RENAMED = re.compile(r"[\w.#]+( AS [\w.#]+)*(, [\w.#]+( AS [\w.#]+)*)*$")
_NOTHING = spark.StructType().add("nothing", "boolean")
_SORTS = ("Sort", "SortWithinPartitions")
_NEW_ORDER = ("Aggregate", "Distinct", "WindowAggr", "Full Join")  # rows come out in no order, or in one of its own


@dataclasses.dataclass
class _Node:
    kind: str
    said: str
    inputs: list[_Node] = dataclasses.field(default_factory=list)

    @property
    def ordered_inputs(self) -> list[_Node]:
        """The inputs whose order Spark keeps in the output."""
        deals_out = self.kind == "ExplicitRepartition" and not self.said.startswith("kind=coalesce")
        if deals_out or self.kind in _NEW_ORDER:
            return []
        inputs = [one for one in self.inputs if one.kind != "Subquery"]
        if self.kind.endswith("Join") and self.kind.startswith(("Left", "Right")):
            return inputs[:1] if self.kind.startswith("Left") else inputs[1:]
        return inputs


def lost_sort(df: Any) -> str | None:
    """The kind of a sort that an operator over this DataFrame would not see; None if there is none.

    A sort that a limit reads is kept, even if the limit leaves no row out. A sort that Spark itself drops, such as one
    before an aggregate, does not count.
    """
    if engine_of(df.sparkSession).keeps_sorts:
        return None
    read: Any = mapped(df, lambda batches: batches, _NOTHING)
    text = read._explain_string(extended=True)
    plan = text.partition("== Optimized Logical Plan ==\n")[2].partition("\n== Physical Plan ==")[0]
    root = _parsed(plan)
    return None if root is None else _lost(root, is_limited=False)


def _parsed(plan: str) -> _Node | None:
    path: list[_Node] = []  # from the root to the last node
    for line in plan.splitlines():
        found = _NODE.match(line)
        depth = len(found[1]) // 2 if found is not None else 0
        if found is None or depth > len(path) or (path and not depth):
            if path:
                path[-1].said += line  # a text in the query has lines
            continue
        node = _Node(found[2], found[3] or "")
        del path[depth:]
        if path:
            path[-1].inputs.append(node)
        path.append(node)
    return path[0] if path else None


def _lost(node: _Node, *, is_limited: bool) -> str | None:
    if node.kind in _SORTS:
        is_kept = node.kind == "Sort" and (is_limited or ", fetch=" in node.said)
        return None if is_kept else node.kind
    is_renaming = node.kind == "SubqueryAlias" or (node.kind == "Projection" and bool(_RENAMED.match(node.said)))
    is_limited = node.kind == "Limit" or (is_limited and is_renaming)
    found = (_lost(one, is_limited=is_limited) for one in node.ordered_inputs)
    return next((kind for kind in found if kind is not None), None)
