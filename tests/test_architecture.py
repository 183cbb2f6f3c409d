# SPDX-License-Identifier: Apache-2.0
"""The import tiers, the one door of each heavy dependency, and the size of files and functions."""

from __future__ import annotations

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "keras_gpu_watch"
SOURCE = Path(__file__).parent.parent / PACKAGE

WORDS = {"records", "samples", "findings", "knobs", "stage_code", "tags", "clock", "guard", "errors", "_version"}
ISLANDS = {
    "probes",
    "recorder",
    "accounting",
    "device_accounting",
    "pipeline",
    "diagnosis",
    "tuning",
    "sinks",
    "report",
}
"""They see words and their own folder, never each other."""
MAY_IMPORT: dict[str, set[str]] = {
    **{word: WORDS for word in WORDS},
    **{island: WORDS for island in ISLANDS},
    # What stands between the islands.
    "ledger": WORDS | {"recorder", "accounting", "device_accounting"},
    "explainer": WORDS | {"pipeline", "diagnosis"},
    "autotuning": WORDS | {"tuning", "probes", "sinks"},
    "bookkeeper": WORDS | {"ledger", "explainer", "autotuning", "accounting", "probes"},
    "session": WORDS | ISLANDS | {"ledger", "autotuning", "bookkeeper", "watched"},
    "watched": WORDS | {"probes", "pipeline"},
    "callback": WORDS | {"session", "report", "tuning"},
    "tensorboard_plugin": {"tags", "records", "report"},
    # The package itself: `_version`, and the homes of the public names.
    "": {"_version", "callback", "watched", "tuning"},
    # What runs on top uses the public names only.
    "cli": {"", "_version", "demo"},
    "demo": {""},
}
DOORS: dict[str, tuple[str, ...]] = {
    "pynvml": ("probes/nvml.py",),
    "keras": ("callback.py", "demo.py", "cli.py"),
    "tensorflow": (
        "probes/stamp.py",
        "probes/iterator_model.py",
        "probes/framework_gpus.py",
        "pipeline/",
        "watched.py",
        "sinks/tensorboard_events.py",
        "sinks/storage.py",
        "demo.py",
    ),
    "tensorboard": ("sinks/tensorboard_events.py", "tensorboard_plugin/"),
    "rich": ("sinks/console.py", "sinks/epoch_table.py", "sinks/stage_table.py", "demo.py", "cli.py"),
    "bokeh": ("report/",),
    "psutil": ("probes/",),
}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60


def imported_names(path: Path, root: Path) -> Iterator[str]:
    """Dotted names that a file imports, wherever in the file, relative ones resolved."""
    folders = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [PACKAGE, *folders][: len(folders) + 2 - node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            yield from (arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str))


def part_of(path: Path, root: Path) -> str:
    """The top-level module or folder that a file belongs to; "" for the package's own `__init__.py`."""
    first = path.relative_to(root).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def parts_imported(path: Path, root: Path) -> set[str]:
    """Parts of the package that a file imports; "" where it imports a public name."""
    parts = {part_of(file, root) for file in root.rglob("*.py")}
    split = [name.split(".") for name in imported_names(path, root)]
    own = [names[1] if len(names) > 1 else "" for names in split if names[0] == PACKAGE]
    return {name if name in parts else "" for name in own}


def tier_violations(root: Path) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        part = part_of(path, root)
        if part not in MAY_IMPORT:
            found.append(f"{path.relative_to(root)} belongs to no tier")
            continue
        forbidden = parts_imported(path, root) - MAY_IMPORT[part] - {part}
        found += [f"{path.relative_to(root)} imports {other or 'a public name'}" for other in sorted(forbidden)]
    return found


def module_graph(root: Path) -> dict[str, set[str]]:
    """Modules of the package, each with the modules that it imports by name."""
    names = {path: ".".join([PACKAGE, *path.relative_to(root).with_suffix("").parts]) for path in root.rglob("*.py")}
    names = {path: name.removesuffix(".__init__") for path, name in names.items()}
    graph: dict[str, set[str]] = {}
    for path, name in names.items():
        imported = set(imported_names(path, root))
        # `from package import name` imports the module `package.name` where there is one, else `package`.
        targets = {each if each in names.values() else each.rpartition(".")[0] for each in imported}
        graph[name] = targets & set(names.values()) - {name}
    return graph


def cycles(root: Path) -> list[str]:
    try:
        graphlib.TopologicalSorter(module_graph(root)).prepare()
    except graphlib.CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def is_door(place: str, doors: tuple[str, ...]) -> bool:
    return any(place == door or (door.endswith("/") and place.startswith(door)) for door in doors)


def door_violations(root: Path) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).as_posix()
        heavy = {name.split(".")[0] for name in imported_names(path, root)} & set(DOORS)
        found += [f"{place} imports {name}" for name in sorted(heavy) if not is_door(place, DOORS[name])]
    return found


def size_violations(root: Path) -> list[str]:
    found = []
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        if len(text.splitlines()) > MAX_FILE_LINES:
            found.append(f"{path.relative_to(root)} has over {MAX_FILE_LINES} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MAX_FUNCTION_LINES:
                    found.append(f"{path.relative_to(root)}: {node.name} has {lines} lines")
    return found


RULES = (tier_violations, cycles, door_violations, size_violations)


@pytest.mark.parametrize("rule", RULES)
def test_the_package_keeps_the_rule(rule):
    assert (SOURCE / "records.py").is_file()
    assert rule(SOURCE) == []


SOUND_TREE = {
    "__init__.py": "from keras_gpu_watch._version import __version__",
    "_version.py": "",
    "records.py": "import numpy",
    "recorder.py": "from keras_gpu_watch import records",
    "probes/__init__.py": "",
    "probes/stamp.py": "import tensorflow as tf\nfrom keras_gpu_watch.records import Step",
    "probes/timer.py": "from keras_gpu_watch.probes.stamp import Stamp",
    "sinks/console.py": "from rich.table import Table",
    "session.py": "from keras_gpu_watch.sinks import console\nfrom keras_gpu_watch.recorder import Recorder",
    "callback.py": "import keras\nfrom keras_gpu_watch.session import Session",
    "demo.py": "from keras_gpu_watch import GPUWatch",
}
LONG_FUNCTION = "def long():\n" + "    pass\n" * MAX_FUNCTION_LINES


def make_tree(root: Path, **changed: str) -> Path:
    for name, text in {**SOUND_TREE, **changed}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize("rule", RULES)
def test_the_rules_pass_a_sound_tree(tmp_path, rule):
    assert rule(make_tree(tmp_path)) == []


TIER_CASES = [
    ("records.py", "from keras_gpu_watch.recorder import Recorder", "records.py imports recorder"),
    ("recorder.py", "import keras_gpu_watch.probes.stamp", "recorder.py imports probes"),
    ("recorder.py", "from keras_gpu_watch import probes", "recorder.py imports probes"),
    ("recorder.py", "from . import probes", "recorder.py imports probes"),
    ("probes/timer.py", "from ..sinks import console", "probes/timer.py imports sinks"),
    ("probes/timer.py", "def f():\n    from keras_gpu_watch import sinks", "probes/timer.py imports sinks"),
    ("callback.py", "from keras_gpu_watch.recorder import Recorder", "callback.py imports recorder"),
    ("session.py", "from keras_gpu_watch import GPUWatch", "session.py imports a public name"),
    ("demo.py", "from keras_gpu_watch.session import Session", "demo.py imports session"),
    ("misc.py", "", "misc.py belongs to no tier"),
]
DOOR_CASES = [
    ("recorder.py", "import tensorflow as tf", "recorder.py imports tensorflow"),
    ("recorder.py", "def f():\n    from tensorflow.data import Dataset", "recorder.py imports tensorflow"),
    ("recorder.py", "import_module('keras.callbacks')", "recorder.py imports keras"),
    ("probes/stamp.py", "import pynvml", "probes/stamp.py imports pynvml"),
]
SIZE_CASES = [
    ("recorder.py", LONG_FUNCTION, f"recorder.py: long has {MAX_FUNCTION_LINES + 1} lines"),
    ("recorder.py", "\n" * (MAX_FILE_LINES + 1), f"recorder.py has over {MAX_FILE_LINES} lines"),
]


@pytest.mark.parametrize(("name", "text", "expected"), TIER_CASES)
def test_the_tier_rule_finds_a_violation(tmp_path, name, text, expected):
    assert tier_violations(make_tree(tmp_path, **{name: text})) == [expected]


@pytest.mark.parametrize(("name", "text", "expected"), DOOR_CASES)
def test_the_door_rule_finds_a_violation(tmp_path, name, text, expected):
    assert door_violations(make_tree(tmp_path, **{name: text})) == [expected]


@pytest.mark.parametrize(("name", "text", "expected"), SIZE_CASES)
def test_the_size_rule_finds_a_violation(tmp_path, name, text, expected):
    assert size_violations(make_tree(tmp_path, **{name: text})) == [expected]


def test_the_rules_find_a_cycle(tmp_path):
    tree = make_tree(tmp_path, **{"probes/stamp.py": "def f():\n    from keras_gpu_watch.probes import timer"})
    (cycle,) = cycles(tree)
    assert "keras_gpu_watch.probes.stamp" in cycle
    assert "keras_gpu_watch.probes.timer" in cycle
