# SPDX-License-Identifier: Apache-2.0
"""Shared fixtures, and what must be set before TensorFlow is imported."""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import numpy as np
import pytest
from nvml_scenarios import NvmlStub, compile_library

THREAD_PREFIX = "keras-gpu-watch"
NO_GPU = "gpu: this machine has no NVIDIA GPU"
RERUNS = 2
"""Of a test that compares times."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timed"):
            # Another program on these cores may spoil one run; what is wrong in the code spoils each.
            item.add_marker(pytest.mark.flaky(reruns=RERUNS))
    # The driver's own node: looking with TensorFlow would import it for every test.
    if Path("/dev/nvidiactl").exists():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(THREAD_PREFIX)]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    deadline_seconds = time.monotonic() + 2
    while our_threads() and time.monotonic() < deadline_seconds:
        time.sleep(0.02)
    assert not our_threads()


@pytest.fixture(autouse=True)
def _seeds() -> None:
    random.seed(0)
    np.random.seed(0)
    # Tests that don't use TensorFlow must not pay for its import.
    if "tensorflow" in sys.modules:
        import keras

        keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stub of NVML; `nvml_scenarios` tells how it is used. A subprocess needs to load it before it asks for NVML."""
    return compile_library(tmp_path_factory.mktemp("nvml"), "libnvidia-ml.so.1", "nvml.c", "scenario.c")


@pytest.fixture
def nvml(nvml_library: Path, tmp_path: Path) -> Iterator[NvmlStub]:
    """The stub of NVML, loaded into this process; until a scenario is loaded, there is no driver."""
    stub = NvmlStub(nvml_library, tmp_path)
    stub.unload()
    yield stub
    stub.unload()


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stub of CUDA's driver library, for subprocesses only: TensorFlow would take it for CUDA."""
    return compile_library(tmp_path_factory.mktemp("cuda"), "libcuda.so.1", "cuda.c")


@pytest.fixture
def log_dir(tmp_path: Path) -> str:
    """Where a test's logs go."""
    return str(tmp_path / "logs")
