# SPDX-License-Identifier: Apache-2.0
"""The public names, and that importing the package stays cheap."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import keras_gpu_watch

HEAVY = ("bokeh", "keras", "psutil", "pynvml", "rich", "tensorboard", "tensorflow")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_all_holds_exactly_the_documented_names():
    assert set(keras_gpu_watch.__all__) == {"AutoTune", "GPUWatch", "watch", "__version__"}


def test_every_public_name_can_be_imported_and_has_a_docstring():
    assert keras_gpu_watch.AutoTune.__doc__
    assert keras_gpu_watch.GPUWatch.__doc__
    assert keras_gpu_watch.watch.__doc__


def test_dir_lists_public_names_before_their_first_use():
    listed = run_python("import keras_gpu_watch; print(*dir(keras_gpu_watch))").split()
    assert set(keras_gpu_watch.__all__) <= set(listed)


def test_importing_the_package_imports_nothing_heavy():
    loaded = run_python("import sys, keras_gpu_watch; print(*sys.modules)").split()
    assert "keras_gpu_watch" in loaded
    assert not set(HEAVY) & set(loaded)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'watched_by'"):
        _ = keras_gpu_watch.watched_by


def test_without_tensorflow_watch_says_in_one_sentence_what_to_install():
    code = """
import sys
sys.modules["tensorflow"] = None  # What the import system takes for "not installed".
try:
    from keras_gpu_watch import watch
except ImportError as error:
    print(error)
"""
    sentence = run_python(code)
    assert "needs TensorFlow" in sentence
    assert "pip install 'keras-gpu-watch[tensorflow]'" in sentence
    assert "\n" not in sentence


def test_the_packages_docstring_maps_every_module_and_folder():
    package = Path(keras_gpu_watch.__file__).parent
    files = [path.relative_to(package) for path in package.rglob("*.py")]
    parts = {path.parent.name if path.stem == "__init__" else path.stem for path in files} - {"", "_version"}
    # The one interface that all sinks share is no part of its own.
    parts -= {"sink"}
    text = keras_gpu_watch.__doc__ or ""
    assert [part for part in sorted(parts) if not re.search(rf"`(\w+\.)?{part}\b", text)] == []
