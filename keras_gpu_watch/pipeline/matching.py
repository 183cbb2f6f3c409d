# SPDX-License-Identifier: Apache-2.0
"""Finds the user's stages in tf.data's model: both are trees, and tf.data has changed some of its own.

Both are walked down from the consumer's end. Where they disagree, the walk goes on at the nearest place where they
agree again: a node passed by was injected by tf.data, a stage passed by was removed (as `repeat(1)` is) or became part
of another.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline.model_tree import LiveModel
from keras_gpu_watch.pipeline.node_names import FUSED, OPENERS, agree, contradict, word

_REACH = 12
"""Stages and nodes that may be passed by at one place."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where a stage is in a model, by ids of nodes."""

    node: int
    """The one whose elements are the stage's."""
    parts: tuple[int, ...] = ()
    """Others that are the same stage."""
    opened: tuple[int, ...] = ()
    """Heads of the datasets that it opened and that are still alive."""


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """The stages, completed by what tf.data injected, and their places.

    Attributes:
        stages: As given, with further ones where they belong, all indices counted anew.
        places: One for each stage; `None`: not found, or measured at the place of the stage that it is `fused_with`.
        origins: Index of each stage among those given; `None` for a further one.
        passed: Indices of stages that have no node although the model goes on below them.
    """

    stages: tuple[Stage, ...]
    places: tuple[Place | None, ...]
    origins: tuple[int | None, ...]
    passed: frozenset[int]


def match(stages: Sequence[Stage], model: LiveModel, *, is_stamped: bool = False) -> Match:
    """Find each stage in the model.

    Args:
        stages: The user's, sources first, or those of an earlier match; none: they are made from the nodes alone.
        model: What tf.data tells of the live iterator.
        is_stamped: Whether the iterator carries our own stages on top, which are left out.
    """
    top = _users_top(model, is_stamped)
    if top is None:
        return Match(tuple(stages), (None,) * len(stages), tuple(range(len(stages))), frozenset())
    origins: Sequence[int | None] = range(len(stages))
    if not stages:
        stages = _stages_of(model, top)
        origins = [None] * len(stages)
    walk = _Walk(stages, model)
    walk.go(len(stages) - 1, top)
    return _completed(stages, walk, origins)


class _Walk:
    """One walk down both trees."""

    def __init__(self, stages: Sequence[Stage], model: LiveModel) -> None:
        self.stages = stages
        self.model = model
        self.places: dict[int, Place] = {}
        self.fused: dict[int, int] = {}
        self.passed: set[int] = set()
        # By the stage that they are above of, from the lowest up.
        self.injected: dict[int, list[int]] = {}

    def go(self, stage: int, node: int) -> None:
        waiting = [(stage, node)]
        while waiting:
            waiting.extend(self._settle(*waiting.pop()))

    def _settle(self, stage: int, node: int) -> list[tuple[int, int]]:
        """Find the place of `stage` at `node` or below; what remains below both."""
        if agree(self.stages[stage].op, self.model.nodes[node].name):
            return self._place(stage, node)
        stage_chain, node_chain = self._stage_chain(stage), self._node_chain(node)
        meeting = self._meeting(stage_chain, node_chain)
        if meeting is None:
            return []
        down_stages, down_nodes = meeting
        if down_stages == down_nodes and not any(map(self._contradict, stage_chain[:down_stages], node_chain)):
            # As many on both sides, under names that are not known: they are the same.
            down_stages = down_nodes = 0
        self.passed.update(stage_chain[:down_stages])
        self.injected[stage_chain[0]] = node_chain[:down_nodes][::-1]
        return self._place(stage_chain[down_stages], node_chain[down_nodes])

    def _meeting(self, stage_chain: list[int], node_chain: list[int]) -> tuple[int, int] | None:
        for distance in range(1, len(stage_chain) + len(node_chain) - 1):
            for down_stages in range(distance + 1):
                down_nodes = distance - down_stages
                if down_stages < len(stage_chain) and down_nodes < len(node_chain):
                    op = self.stages[stage_chain[down_stages]].op
                    if agree(op, self.model.nodes[node_chain[down_nodes]].name):
                        return down_stages, down_nodes
        return None if self._contradict(stage_chain[0], node_chain[0]) else (0, 0)

    def _contradict(self, stage: int, node: int) -> bool:
        return contradict(self.stages[stage].op, self.model.nodes[node].name)

    def _place(self, stage: int, node: int) -> list[tuple[int, int]]:
        stage = self._carrier(stage, node)
        inputs = self.stages[stage].inputs
        parts, below, opened = _split_inputs(self.model, node, len(inputs))
        self.places[stage] = Place(node, parts, opened)
        return list(zip(inputs, below, strict=False))

    def _carrier(self, stage: int, node: int) -> int:
        """The stage that does a fused node's work, or `stage` itself."""
        upper, lower = FUSED.get(word(self.model.nodes[node].name), (None, None))
        if self.stages[stage].op != upper:
            return stage
        for number, below in enumerate(chain := self._stage_chain(stage)):
            if self.stages[below].op == lower:
                self.passed.update(chain[1:number])
                self.fused[stage] = below
                return below
        return stage

    def _stage_chain(self, stage: int) -> list[int]:
        chain = [stage]
        while len(chain) < _REACH and len(self.stages[chain[-1]].inputs) == 1:
            chain.extend(self.stages[chain[-1]].inputs)
        return chain

    def _node_chain(self, node: int) -> list[int]:
        chain = [node]
        while len(chain) < _REACH and len(below := _split_inputs(self.model, chain[-1], None)[1]) == 1:
            chain.extend(below)
        return chain


def _split_inputs(
    model: LiveModel, node: int, count: int | None
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A node's inputs: those that are the same stage, those of the `count` stages below, those that it opened."""
    name = model.nodes[node].name
    inputs = model.inputs(node)
    if word(name) in OPENERS:
        inputs, opened = inputs[:1], inputs[1:]
        return ((), inputs, opened) if count is None or count else (_whole(model, inputs), (), opened)
    if len(inputs) == 1 and model.nodes[inputs[0]].name == f"{name}Impl":
        return inputs, model.inputs(inputs[0]), ()
    if count is None or count >= len(inputs):
        return (), inputs, ()
    # Such as the numbers of `enumerate`, the selector of `sample_from_datasets`: tf.data puts them first.
    own = len(inputs) - count
    return _whole(model, inputs[:own]), inputs[own:], ()


def _whole(model: LiveModel, heads: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(node.id for head in heads for node in model.subtree(head))


def _users_top(model: LiveModel, is_stamped: bool) -> int | None:
    """The user's last node: below tf.data's `Root`, and below our own `Map` over `Zip` of stamps and his nodes."""
    if model.output not in model.nodes:
        return None
    top = model.output
    if model.nodes[top].name == "Root":
        inputs = model.inputs(top)
        if not inputs:
            return None
        top = inputs[0]
    return _below_stamps(model, top) if is_stamped else top


def _below_stamps(model: LiveModel, top: int) -> int | None:
    def names(nodes: tuple[int, ...]) -> list[str]:
        return [model.nodes[node].name for node in nodes]

    zipped = model.inputs(top)
    if names((top, *zipped)) != ["Map", "Zip"]:
        return top
    inputs = model.inputs(zipped[0])
    if names(inputs[:1]) != ["Map"] or names(model.inputs(inputs[0])) != ["Range"]:
        return top
    return inputs[1] if len(inputs) > 1 else None


def _stages_of(model: LiveModel, top: int) -> tuple[Stage, ...]:
    """Stages in the words of the nodes alone."""
    order, waiting = [], [top]
    while waiting:
        node = waiting.pop()
        order.append(node)
        waiting.extend(_split_inputs(model, node, _inputs_wanted(model, node))[1])
    order.reverse()
    index = {node: number for number, node in enumerate(order)}
    return tuple(
        Stage(
            index=number,
            op=_op(model, node),
            inputs=tuple(index[each] for each in _split_inputs(model, node, _inputs_wanted(model, node))[1]),
        )
        for number, node in enumerate(order)
    )


def _inputs_wanted(model: LiveModel, node: int) -> int | None:
    return 0 if _op(model, node) == "from_generator" else None


def _op(model: LiveModel, node: int) -> str:
    opened = [model.nodes[each].name for each in model.inputs(node)[1:]]
    return "from_generator" if opened == ["Generator"] else word(model.nodes[node].name)


def _completed(stages: Sequence[Stage], walk: _Walk, origins: Sequence[int | None]) -> Match:
    """The stages with the injected ones among them, all indices counted anew."""
    own, last = _new_indices(stages, walk)
    fused = [*walk.fused.items(), *((lower, upper) for upper, lower in walk.fused.items())]
    partners = {old: {own[each] for each in stage.fused_with} for old, stage in enumerate(stages)}
    for old, other in fused:
        partners[old].add(own[other])
    rows: list[tuple[Stage, Place | None, int | None]] = []
    for old, stage in enumerate(stages):
        inputs = tuple(last[below] for below in stage.inputs)
        fused_with = tuple(sorted(partners[old]))
        renumbered = dataclasses.replace(stage, index=own[old], inputs=inputs, fused_with=fused_with)
        rows.append((renumbered, walk.places.get(old), origins[old]))
        for node in walk.injected.get(old, ()):
            rows.append((_injected(walk.model, node, len(rows)), _place_of_injected(walk.model, node), None))
    completed, places, all_origins = zip(*rows, strict=True)
    return Match(completed, places, all_origins, frozenset(own[old] for old in walk.passed))


def _new_indices(stages: Sequence[Stage], walk: _Walk) -> tuple[list[int], list[int]]:
    """For each stage its new index, and that of the last stage injected above it (its own where there is none)."""
    injected = [len(walk.injected.get(old, ())) for old in range(len(stages))]
    last = [old + count for old, count in enumerate(itertools.accumulate(injected))]
    return [index - count for index, count in zip(last, injected, strict=True)], last


def _injected(model: LiveModel, node: int, index: int) -> Stage:
    return Stage(index=index, op=word(model.nodes[node].name), inputs=(index - 1,), added_by="tensorflow")


def _place_of_injected(model: LiveModel, node: int) -> Place:
    parts, _, opened = _split_inputs(model, node, 1)
    return Place(node, parts, opened)
