# SPDX-License-Identifier: Apache-2.0
"""What a function of the user is called, and where it is written."""

from __future__ import annotations

import functools
from collections import deque
from itertools import islice, pairwise
from pathlib import PurePath, PureWindowsPath
from types import CodeType, FunctionType, GeneratorType, MethodType
from typing import Any

MAX_NAME_LENGTH = 80
"""Characters; names are shown in tables and sentences."""
_LIBRARIES = frozenset({"keras", "tensorflow"})
# A decorator stack is never that deep; an object that wraps itself must not keep us here.
_MAX_WRAPPERS = 20
_MAX_CAPTURED = 50
_MAX_TRACEBACKS = 20
# Of an object that stands for a function: a layer's, any other's, and a `PyDataset`'s.
_METHODS = ("call", "__call__", "__getitem__")
_GENERATED_PREFIX = "tf__"


def function_name(function: Any) -> str:
    """Call a function as the user does: `"decode"`, `"Augmenter.flip"`, `"lambda"`, or an object by its class.

    Args:
        function: Whatever can be handed to `Dataset.map`, or an object that gives data.

    Returns:
        At most `MAX_NAME_LENGTH` characters, as the user wrote them: displays escape them.
    """
    plain = unwrapped(function)
    if _is_concrete(plain):
        return _shortened(plain.graph.name)
    name = getattr(plain, "__qualname__", None) if _has_own_name(plain) else type(plain).__qualname__
    name = str(name).rpartition("<locals>.")[2]
    if _is_generated(plain):
        name = name.removeprefix(_GENERATED_PREFIX)
    return _shortened("lambda" if name.endswith("<lambda>") else name)


def function_source(function: Any) -> str | None:
    """Tell where a function is written, as `"train.py:42"`.

    Args:
        function: Whatever can be handed to `Dataset.map`, or an object that gives data.

    Returns:
        The file's name without its folders, and the line; `None` where no Python code of the user's is behind it.
    """
    plain = unwrapped(function)
    if _is_concrete(plain):
        return _traced_source(plain.graph)
    code = _code(plain)
    if code is None:
        return None
    if _is_generated(plain):
        return _original_source(plain)
    return _place(code.co_filename, code.co_firstlineno)


def unwrapped(function: Any) -> Any:
    """Take off `functools.partial`, decorators, `tf.function` and the binding of a method."""
    for _ in range(_MAX_WRAPPERS):
        if isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, MethodType):
            function = function.__func__
        elif callable(inner := _own_attributes(function).get("__wrapped__")):
            function = inner
        else:
            break
    return function


def library_module(function: Any) -> str | None:
    """Tell in which module of Keras or TensorFlow a function is written; `None`: in neither."""
    plain = unwrapped(function)
    module = plain.__globals__.get("__name__") if isinstance(plain, FunctionType) else type(plain).__module__
    module = str(module)
    return module if module.partition(".")[0] in _LIBRARIES else None


def is_internal(function: Any) -> bool:
    """Tell whether a library made the function for itself, where `tf.io.decode_jpeg` is one that users pick."""
    plain = unwrapped(function)
    if not isinstance(plain, FunctionType) or library_module(plain) is None:
        return False
    return "<locals>" in plain.__qualname__ or "<lambda>" in plain.__qualname__


def captured(function: Any) -> dict[str, Any]:
    """Get what a Python function has taken in from the functions around it, by name."""
    if not isinstance(function, FunctionType):
        return {}
    values = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            values[name] = cell.cell_contents
        except ValueError:  # Not assigned yet.
            continue
    return values


def user_function(function: Any) -> Any:
    """Find the user's function inside one that a library wrote around it.

    Args:
        function: What a dataset object holds.

    Returns:
        The nearest function of the user's; `function` itself where it is the user's or there is no other.
    """
    if not is_internal(function):
        return function
    waiting, seen = deque([function]), set[int]()
    while waiting and len(seen) < _MAX_CAPTURED:
        candidate = waiting.popleft()
        if id(candidate) in seen:
            continue
        seen.add(id(candidate))
        if library_module(candidate) is None:
            return candidate
        waiting.extend(value for value in captured(unwrapped(candidate)).values() if _is_function(value))
    return function


def _is_function(value: Any) -> bool:
    return isinstance(value, (FunctionType, MethodType, functools.partial))


def _has_own_name(plain: Any) -> bool:
    """Functions, built-in ones, classes and generators do; for other objects, `__qualname__` may mean anything."""
    return isinstance(plain, (type, FunctionType, GeneratorType)) or type(plain) is type(len)


def _own_attributes(value: Any) -> dict[str, Any]:
    """What stands on the object itself: asking for an attribute may run the user's `__getattr__`."""
    attributes = getattr(value, "__dict__", None)
    return attributes if isinstance(attributes, dict) else {}


def _code(plain: Any) -> CodeType | None:
    if isinstance(plain, FunctionType):
        return plain.__code__
    if isinstance(plain, GeneratorType):
        return plain.gi_code
    for method in _METHODS:
        function = unwrapped(getattr(type(plain), method, None))
        if isinstance(function, FunctionType) and library_module(function) is None:
            return function.__code__
    return None


def _is_generated(plain: Any) -> bool:
    """Whether AutoGraph wrote this function from one of the user's."""
    return isinstance(plain, FunctionType) and "ag_source_map" in vars(plain)


def _original_source(plain: Any) -> str | None:
    origins = [origin.loc for origin in plain.ag_source_map.values()]
    first = min(origins, key=lambda place: place.lineno, default=None)
    return _place(first.filename, first.lineno) if first else None


def _is_concrete(plain: Any) -> bool:
    """Whether it was traced already, and only its graph tells what it is."""
    return type(plain).__name__ == "ConcreteFunction" and library_module(plain) is not None


def _traced_source(graph: Any) -> str | None:
    """Where the first operation of the user's was written."""
    traced = (operation for operation in graph.get_operations() if operation.type != "Placeholder")
    for operation in islice(traced, _MAX_TRACEBACKS):
        frames = [frame for frame in getattr(operation, "traceback", None) or () if not _in_library(frame.filename)]
        if frames:
            return _place(frames[-1].filename, frames[-1].lineno)
    return None


def _in_library(filename: str) -> bool:
    parts = PurePath(filename).parts
    return any(folder.endswith("-packages") and name in _LIBRARIES for folder, name in pairwise(parts))


def _place(filename: str, line: int) -> str:
    # Both separators, wherever the code was compiled.
    return _shortened(f"{PureWindowsPath(filename).name}:{line}")


def _shortened(name: str) -> str:
    return name[:MAX_NAME_LENGTH]
