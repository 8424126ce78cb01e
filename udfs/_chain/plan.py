"""A stream in the plan of a chain."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from ._layout import Layout
from ._specs import Spec

__all__ = ("Node",)


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """A stream in a plan: the operator that makes it, and the streams that the operator reads.

    `spec` is None for the source. Nodes are told apart by identity.
    """

    spec: Spec | None
    parents: tuple[Node, ...]
    layout: Layout  # of its rows
    schema: Any  # the same as a Spark StructType, for planning

    def path(self) -> Iterator[Node]:
        """The node and all before it, each once, a node after those that it reads."""
        seen: set[Node] = set()

        def visit(node: Node) -> Iterator[Node]:
            if node not in seen:
                seen.add(node)
                for parent in node.parents:
                    yield from visit(parent)
                yield node

        return visit(self)
