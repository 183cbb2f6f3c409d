# SPDX-License-Identifier: Apache-2.0
"""Loads that keep a GPU busy for a share of the time that is known."""

from __future__ import annotations

import os
import time
from importlib import import_module
from typing import Any

import numpy as np

MATRIX = 4096
NO_LOAD = "Neither PyTorch nor JAX can use a GPU here."


class Load:
    """Keeps CUDA's first device busy with matrix products."""

    name: str
    uuid: str | None = None

    def launch(self) -> None:
        """Hand one product to the device."""
        raise NotImplementedError

    def wait(self) -> None:
        """Wait for all of them."""
        raise NotImplementedError

    def calibrate(self) -> None:
        """Find out how long a product takes."""
        for count in (20, 200):
            begin = time.perf_counter()
            for _ in range(count):
                self.launch()
            self.wait()
            self._product_seconds = (time.perf_counter() - begin) / count

    def enqueue(self, seconds: float) -> int:
        """Hand over work for about so long, without waiting; returns the number of products."""
        count = max(round(seconds / self._product_seconds), 1)
        for _ in range(count):
            self.launch()
        return count

    def work(self, seconds: float, chunk_seconds: float = 0.01) -> float:
        """Keep the device busy for so long; returns products per second."""
        begin, done = time.perf_counter(), 0
        while time.perf_counter() < begin + seconds:
            done += self.enqueue(chunk_seconds)
            self.wait()
        return done / (time.perf_counter() - begin)

    def cycle(self, duty: float, period_seconds: float, seconds: float) -> float:
        """Be busy for a share of each period; returns the busy share that came of it."""
        begin, busy_seconds, periods = time.perf_counter(), 0.0, round(seconds / period_seconds)
        for period in range(1, periods + 1):
            started = time.perf_counter()
            if duty > 0:
                self.work(duty * period_seconds)
            busy_seconds += time.perf_counter() - started if duty > 0 else 0.0
            time.sleep(max(begin + period * period_seconds - time.perf_counter(), 0.0))
        return busy_seconds / (time.perf_counter() - begin)


class TorchLoad(Load):
    """By PyTorch."""

    def __init__(self) -> None:
        self._torch: Any = import_module("torch")
        self._matrix = self._torch.randn(MATRIX, MATRIX, device="cuda:0", dtype=self._torch.float16)
        self._product = self._torch.empty_like(self._matrix)
        self.name = f"PyTorch {self._torch.__version__}"
        # Older versions do not tell.
        uuid = getattr(self._torch.cuda.get_device_properties(0), "uuid", None)
        self.uuid = None if uuid is None else str(uuid)

    def launch(self) -> None:
        self._torch.mm(self._matrix, self._matrix, out=self._product)

    def wait(self) -> None:
        self._torch.cuda.synchronize()


class JaxLoad(Load):
    """By JAX."""

    def __init__(self) -> None:
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        jax: Any = import_module("jax")
        device = jax.devices("gpu")[0]
        self._matrix = jax.device_put(np.random.default_rng(0).standard_normal((MATRIX, MATRIX), np.float32), device)
        self._matrix = self._matrix.astype("float16")
        self._multiply = jax.jit(lambda matrix: matrix @ matrix)
        self.name = f"JAX {jax.__version__}"

    def launch(self) -> None:
        self._product = self._multiply(self._matrix)

    def wait(self) -> None:
        self._product.block_until_ready()


LOADS = {"torch": TorchLoad, "jax": JaxLoad}


def make_load(framework: str | None) -> Load:
    """A load by one of `LOADS`, or by the first one that can use the GPU."""
    reasons = []
    for name in LOADS if framework is None else (framework,):
        try:
            load: Load = LOADS[name]()
        # What they raise where they are not there, or made for the CPU only.
        except (ImportError, RuntimeError, AssertionError) as error:
            reasons.append(f"{name}: {error}")
        else:
            load.calibrate()
            return load
    raise SystemExit("\n".join([NO_LOAD, *reasons]))
