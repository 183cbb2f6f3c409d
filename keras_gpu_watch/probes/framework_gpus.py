# SPDX-License-Identifier: Apache-2.0
"""The door to the framework's own list of GPUs."""

from __future__ import annotations


def tensorflow_gpu_ordinals() -> tuple[int, ...] | None:
    """The GPUs that TensorFlow uses, by CUDA ordinal; empty when it uses none, `None` when it does not tell.

    TensorFlow numbers its physical GPUs as CUDA does, and `tf.config.set_visible_devices` may leave some out. Asking
    takes no memory on them.
    """
    # Here, because with another backend than TensorFlow this package must not load it.
    import tensorflow as tf

    try:
        names = [device.name for device in tf.config.get_visible_devices("GPU")]
        return tuple(int(name.rpartition(":")[2]) for name in names)
    # Sampling can do without.
    except Exception:  # noqa: BLE001
        return None
