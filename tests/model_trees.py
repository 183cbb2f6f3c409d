# SPDX-License-Identifier: Apache-2.0
"""Models of iterators and stages, built by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline.model_tree import LiveModel, Node


@dataclasses.dataclass
class Tree:
    """A node to be, with what is below it."""

    name: str
    below: tuple[Tree, ...] = ()
    fields: dict[str, Any] = dataclasses.field(default_factory=dict)


def tree(name: str, *below: Tree | str, **fields: Any) -> Tree:
    """A node over others; a string stands for a node without inputs."""
    return Tree(name, tuple(each if isinstance(each, Tree) else Tree(each) for each in below), fields)


def model(top: Tree) -> LiveModel:
    """A model under tf.data's `Root`, ids from the consumer's end unless a node's fields say otherwise."""
    nodes: dict[int, Node] = {}

    def add(current: Tree) -> int:
        number = current.fields.get("id", len(nodes) + 1)
        nodes[number] = Node(id=number, name=current.name)
        below = tuple(add(each) for each in current.below)
        nodes[number] = dataclasses.replace(nodes[number], inputs=below, **current.fields)
        return number

    return LiveModel(nodes=nodes, output=add(tree("Root", top)))


def chain(*ops: str) -> tuple[Stage, ...]:
    """Stages in a row, the source first."""
    return tuple(Stage(index=index, op=op, inputs=(index - 1,) if index else ()) for index, op in enumerate(ops))


def names(found: Any, live: LiveModel) -> list[tuple[str, str | None]]:
    """Each stage's op and the name of its node."""
    places: Sequence[Any] = found.places
    return [
        (stage.op, None if place is None else live.nodes[place.node].name)
        for stage, place in zip(found.stages, places, strict=True)
    ]
