# SPDX-License-Identifier: Apache-2.0
"""What the traced functions of a stage do: run Python, keep state, draw random numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

_MAX_OPERATIONS = 20_000
"""Looked at for one stage, in 15 ms. Whoever has more gets no answer rather than a slow one."""
_PYTHON = {
    "GeneratorDataset": "from_generator",
    "EagerPyFunc": "py_function",
    "PyFunc": "numpy_function",
    "PyFuncStateless": "numpy_function",
}
"""By kind of operation, the heaviest user of Python first."""
_PYTHON_CALLS = _PYTHON.keys() - {"GeneratorDataset"}

# Marked as stateful so that TensorFlow neither folds nor merges them; they change nothing that another call would see.
_READS = {"ReadVariableOp", "_ReadVariablesOp", "VarHandleOp", "VarIsInitializedOp", "VariableShape"}
_READS |= {"ResourceGather", "ResourceGatherNd", "LookupTableFindV2", "LookupTableSizeV2", "HashTableV2"}
_CHECKS = {"Assert", "CheckNumerics", "CheckNumericsV2", "StatelessRandomGetAlg", "DeviceIndex"}
# What they run is a function of its own, which is looked at as well.
_CALLS = {"If", "While", "Case", "StatefulPartitionedCall", "ReduceDataset", "DatasetToSingleElement"}
_HARMLESS = frozenset(_READS | _CHECKS | _CALLS)
_DATASET = re.compile(r"Dataset(V\d+)?$")
_STATEFUL_DATASET = re.compile(r"Generator|Random|Shuffle")

_RANDOM = re.compile(
    r"^Random(?!ShuffleQueue)|^Shuffle|^Rng|^Multinomial|^Stateful(Uniform|Standard|Truncated|Random)"
    r"|TruncatedNormal|CandidateSampler|^SampleDistorted|^NonDeterministicInts|GlobalShuffle"
)
_STATELESS_RANDOM = re.compile(r"^Stateless(Random|Truncated|Multinomial|Parameterized|SampleDistorted)")
_WRITE = re.compile(r"^Assign|^ResourceScatter|^ResourceStridedSliceAssign")


@dataclass(frozen=True, slots=True)
class FunctionTraits:
    """What the functions of a stage do; `None`: it can't be told, or (`python`) nothing of the kind."""

    python: str | None = None
    is_stateful: bool | None = None
    is_random: bool | None = None
    has_other_state: bool | None = None
    """Whether they keep state besides what a `py_function` or `numpy_function` may keep."""


def read_traits(graphs: Iterable[Any]) -> FunctionTraits:
    """Look at every operation of some function graphs, and of all functions that these call.

    Args:
        graphs: Function graphs.

    Returns:
        What the operations do. No graph, no answer.
    """
    kinds, is_complete = _kinds_of_operations(graphs)
    if not kinds:
        return FunctionTraits()
    stateful = {kind for kind, operation in kinds.items() if _is_stateful(kind, operation)}
    # What Python code draws, nobody can see; nor what was not looked at.
    is_hidden = not is_complete or not stateful.isdisjoint(_PYTHON)
    return FunctionTraits(
        python=next((word for kind, word in _PYTHON.items() if kind in kinds), None),
        is_stateful=True if stateful else False if is_complete else None,
        is_random=True if _is_random(kinds, stateful) else None if is_hidden else False,
        has_other_state=True if stateful - _PYTHON_CALLS else False if is_complete else None,
    )


def every_graph(graphs: Iterable[Any]) -> Iterator[Any]:
    """Go through function graphs and those of all functions that they call, each once.

    Args:
        graphs: Function graphs.
    """
    waiting, seen = list(graphs), set[int]()
    while waiting:
        graph = waiting.pop()
        if id(graph) in seen:
            continue
        seen.add(id(graph))
        yield graph
        # Not the graph's protocol buffer: it copies every constant.
        library = getattr(graph, "_functions", {}).values()
        waiting.extend(function.graph for function in library if hasattr(function, "graph"))


def _kinds_of_operations(graphs: Iterable[Any]) -> tuple[dict[str, Any], bool]:
    """One operation of each kind, and whether all were looked at."""
    kinds: dict[str, Any] = {}
    left = _MAX_OPERATIONS
    for graph in every_graph(graphs):
        operations = graph.get_operations()
        left -= len(operations)
        if left < 0:
            return kinds, False
        for operation in operations:
            kinds.setdefault(operation.type, operation)
    return kinds, True


def _is_stateful(kind: str, operation: Any) -> bool:
    if kind in _HARMLESS or not operation.op_def.is_stateful:
        return False
    # Sources are marked only so that they are not folded into constants.
    return not _DATASET.search(kind) or bool(_STATEFUL_DATASET.search(kind))


def _is_random(kinds: Iterable[str], stateful: Iterable[str]) -> bool:
    if any(_RANDOM.search(kind) for kind in stateful):
        return True
    # Keras's seed generators: numbers that follow from a seed, and a variable from which each call takes the next seed.
    draws = any(_STATELESS_RANDOM.search(kind) for kind in kinds)
    return draws and any(_WRITE.search(kind) for kind in stateful)
