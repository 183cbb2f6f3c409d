# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from keras_gpu_watch.probes.device_values import DeviceWait, on_accelerator


class Value:
    """Looks like an eager tensor on some device, and notes when it is read."""

    def __init__(self, device: str = "/job:localhost/replica:0/task:0/device:CPU:0", error: Exception | None = None):
        self.device = device
        self.reads = 0
        self._error = error

    def numpy(self) -> float:
        self.reads += 1
        if self._error is not None:
            raise self._error
        return 1.0


def on_gpu(error: Exception | None = None) -> Value:
    return Value("/job:localhost/replica:0/task:0/device:GPU:0", error)


def test_one_value_on_the_device_is_read_each_step_and_no_other() -> None:
    wait = DeviceWait()
    for _ in range(3):
        count, loss, accuracy = Value(), on_gpu(), on_gpu()
        wait({"count": count, "loss": loss, "nested": {"accuracy": accuracy}})
        assert (count.reads, loss.reads, accuracy.reads) == (0, 1, 0)
    assert wait.seen_on_device is True


def test_a_nested_value_on_the_device_is_found() -> None:
    loss = on_gpu()
    DeviceWait()({"count": Value(), "nested": {"more": {"loss": loss}}})
    assert loss.reads == 1


def test_without_a_device_value_nothing_is_read() -> None:
    wait = DeviceWait()
    loss = Value()
    wait({"name": "text", "loss": loss})
    wait({"name": "text", "loss": loss})
    assert loss.reads == 0
    assert wait.seen_on_device is False


def test_a_single_value_is_read() -> None:
    value = on_gpu()
    DeviceWait()(value)
    assert value.reads == 1


@pytest.mark.parametrize("values", [None, {}, 1.0, {"loss": 1.0}, [], {"a": {}}], ids=repr)
def test_nothing_to_wait_for_is_no_error(values: Any) -> None:
    wait = DeviceWait()
    assert wait.seen_on_device is None
    wait(values)
    wait(values)
    assert wait.seen_on_device is False


def test_values_that_change_their_shape_later_are_no_error() -> None:
    wait = DeviceWait()
    wait({"loss": on_gpu()})
    other = on_gpu()
    wait({"other": other})
    assert other.reads == 1
    wait(None)
    assert wait.seen_on_device is True


def test_an_error_of_the_device_is_left_to_whoever_reads_the_value() -> None:
    lost = on_gpu(RuntimeError("device lost"))
    DeviceWait()({"loss": lost})
    assert lost.reads == 1


def test_ctrl_c_while_waiting_passes_through() -> None:
    class Interrupted(Value):
        def numpy(self) -> float:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DeviceWait()({"loss": Interrupted("/device:GPU:0")})


def test_a_real_tensor_on_the_cpu_is_not_on_an_accelerator() -> None:
    with tf.device("/CPU:0"):
        assert not on_accelerator(tf.constant(1.0))
        assert not on_accelerator(tf.Variable(1.0))


@pytest.mark.gpu
def test_a_real_tensor_on_the_gpu_is_on_an_accelerator() -> None:
    with tf.device("/GPU:0"):
        assert on_accelerator(tf.Variable(1.0))


@pytest.mark.parametrize("device", ["/device:GPU:1", "/job:worker/replica:0/task:1/device:TPU:0"])
def test_gpus_and_tpus_are_accelerators(device: str) -> None:
    assert on_accelerator(Value(device))


@pytest.mark.parametrize("value", [None, 1.0, "GPU", Value("")], ids=["None", "float", "text", "no device"])
def test_what_has_no_device_is_not_on_an_accelerator(value: Any) -> None:
    assert not on_accelerator(value)
