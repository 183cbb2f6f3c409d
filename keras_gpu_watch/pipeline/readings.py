# SPDX-License-Identifier: Apache-2.0
"""What the counters at a stage's place say at one look, and by how much they grew since the look before."""

from __future__ import annotations

from dataclasses import dataclass

from keras_gpu_watch.pipeline.matching import Place
from keras_gpu_watch.pipeline.model_tree import LiveModel, Node
from keras_gpu_watch.pipeline.node_names import word

# Of these tf.data's own ratio does not hold, or not all the time: a shard's is the wrong way round, a concatenation has
# one input at a time, a cache needs its input no more once it is filled.
_RATIO_UNKNOWN = ("shard", "concatenate", "cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """By how much a stage's counters grew."""

    elements: float = 0.0
    """Elements that it gave."""
    made: float = 0.0
    """Elements that its own work was done for: more than it gave while its buffer fills."""
    drawn: float | None = None
    """Elements that it took of each input, where its own counters tell."""
    seconds: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One stage at one look."""

    node: int
    kind: str
    """The word for its node."""
    total: Growth
    """Since its node was made."""
    opened_seconds: float = 0.0
    """Time of the datasets that it opened and that are still alive, as seen by a thread that reads them.

    tf.data forgets that of the others.
    """
    opened_elements: float = 0.0
    has_opened: bool = False
    """Whether its work is done in datasets that it opens, one after the other."""
    buffered_elements: float = 0.0
    buffered_bytes: float = 0.0
    parallelism: float | None = None
    parallelism_max: float | None = None
    buffer_limit: float | None = None


def read_place(model: LiveModel, place: Place) -> Reading:
    """Read a stage's counters.

    Args:
        model: The model at this look.
        place: Where the stage is in it.
    """
    node = model.nodes[place.node]
    kind = word(node.name)
    seconds = node.own_seconds + sum(model.nodes[part].own_seconds for part in place.parts)
    opened = [each for head in place.opened for each in model.subtree(head)]
    parallelism, parallelism_max = _parallelism(node)
    limit = node.knobs.get("buffer_size") or node.knobs.get("max_buffered_elements")
    return Reading(
        node=node.id,
        kind=kind,
        total=Growth(
            elements=node.elements,
            made=node.elements + (node.buffered_elements if node.is_asynchronous else 0),
            drawn=_drawn(node, kind),
            seconds=seconds,
            bytes=node.bytes_given,
        ),
        opened_seconds=sum(_seconds_for_reader(each) for each in opened),
        opened_elements=sum(model.nodes[head].elements for head in place.opened),
        has_opened=kind in ("flat_map", "interleave"),
        buffered_elements=node.buffered_elements,
        buffered_bytes=node.buffered_bytes,
        parallelism=parallelism,
        parallelism_max=parallelism_max,
        buffer_limit=limit.value if limit else None,
    )


def is_continued(before: Reading | None, after: Reading) -> bool:
    """Whether both are readings of the same running iterator."""
    return before is not None and before.node == after.node and before.total.elements <= after.total.elements


def growth(before: Reading | None, after: Reading) -> Growth:
    """What happened between two looks: all since the node was made, if it was made in between."""
    if before is None or not is_continued(before, after):
        return after.total
    old, new = before.total, after.total
    return Growth(
        elements=new.elements - old.elements,
        made=max(0.0, new.made - old.made),
        drawn=None if old.drawn is None or new.drawn is None else max(0.0, new.drawn - old.drawn),
        seconds=max(0.0, new.seconds - old.seconds),
        bytes=max(0.0, new.bytes - old.bytes),
    )


def _drawn(node: Node, kind: str) -> float | None:
    if kind in ("shuffle", "shuffle_and_repeat"):
        return node.elements + node.buffered_elements
    if node.inputs_per_element is None or kind in _RATIO_UNKNOWN:
        return None
    return node.elements * node.inputs_per_element


def _parallelism(node: Node) -> tuple[float | None, float | None]:
    knob = node.knobs.get("parallelism")
    if knob is not None:
        return min(knob.value, knob.limit), knob.limit
    cycle = node.knobs.get("cycle_length")
    if cycle is not None and node.is_asynchronous:
        # The older parallel interleave: one thread for each dataset that it reads.
        return cycle.value, cycle.value
    return None, None


def _seconds_for_reader(node: Node) -> float:
    return node.own_seconds / max(1.0, _parallelism(node)[0] or 1.0)
