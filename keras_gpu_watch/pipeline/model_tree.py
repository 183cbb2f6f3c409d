# SPDX-License-Identifier: Apache-2.0
"""What tf.data's model of a live iterator tells, as plain records: a tree of nodes, the consumer's end on top."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Knob:
    """A number that AUTOTUNE or the user chose."""

    value: float
    """In use now."""
    limit: float
    """The most that AUTOTUNE may choose; for `parallelism` also what there are threads for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One running iterator. Its counters start at 0 when it is made and only grow."""

    id: int
    """Never used again in the same model: `repeat` makes all that is below it anew, with new ids, at each turn."""
    name: str
    """tf.data's own, as `"ParallelMapV2"`."""
    inputs: tuple[int, ...] = ()
    """Ids of the nodes that it reads from, in the order in which they were made; one that ended is gone."""
    elements: int = 0
    """Elements that it gave."""
    own_seconds: float = 0.0
    """Time in its own work, its inputs' and any queueing for a thread excluded, all its parallel calls together.

    It is elapsed time, not the processor's. Of a parallel stage it is the sum over the ops of its function: more than
    the call took where two ops ran side by side.
    """
    bytes_given: int = 0
    buffered_elements: int = 0
    buffered_bytes: int = 0
    inputs_per_element: float | None = None
    """Elements that it takes of each input for one that it gives, where tf.data knows."""
    is_asynchronous: bool = False
    """Whether it works ahead, on threads of its own."""
    knobs: Mapping[str, Knob] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveModel:
    """All nodes of one iterator at one moment."""

    nodes: Mapping[int, Node]
    output: int
    """Id of the node that the consumer reads from."""
    cpu_budget: float | None = None
    ram_budget_bytes: float | None = None

    def inputs(self, node: int) -> tuple[int, ...]:
        """Ids of the inputs of a node that are alive."""
        return tuple(each for each in self.nodes[node].inputs if each in self.nodes)

    def subtree(self, node: int) -> Iterator[Node]:
        """A node and everything below it."""
        waiting = [node]
        while waiting:
            current = waiting.pop()
            yield self.nodes[current]
            waiting.extend(self.inputs(current))
