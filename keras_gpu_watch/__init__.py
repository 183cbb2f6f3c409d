# SPDX-License-Identifier: Apache-2.0
"""Where every second of a Keras training goes.

```python
from keras_gpu_watch import GPUWatch, watch

model.fit(watch(train_ds), epochs=5, callbacks=[GPUWatch("logs")])
```

The map (what each part may import is checked by `tests/test_architecture.py`):

- `records`, `samples`, `tags`, `clock`, `guard`: the words that all parts share: plain records, emitted names, clocks,
  one guard.
- `probes`: each reads one place of the user's program or machine.
    - `step_timer`: the train function's calls; `device_values`: waits until their values are there.
    - `wait_source`: how long a step waited: `stamp_source` knows it from stamps in the graph (`stamp`), `gap_source`
      from tf.data's own statistics (`iterator_model`); `sources` chooses.
    - `train_function`: looks through the wrappers on a train function.
    - `sampler`: the thread that reads GPUs and host. `gpu_sampler` survives what NVML does; `gpu_card` reads one GPU
      through `nvml`, whose errors `nvml_errors` puts into words; `gpu_identity` finds the GPUs that are used, from what
      `cuda` and `framework_gpus` tell. `host_sampler` reads CPU, memory and disk; `host_limits`: what may be used.
    - `boundaries`: when the run, its epochs, its validations begin and end; `model_facts`: what the model tells.
- `recorder`: holds steps and samples, and hands out one epoch's.
- `accounting`: pure arithmetic, from an epoch's steps to its account.
- `device_accounting`: the same for samples: `statistics`, `energy`, `swings`, and `sentences` for what stands out.
- `ledger`: the account of the epoch under way, from recorder and accounting.
- `sinks`: outputs.
    - `tensorboard_events`, `json_report`, `console`: one each; `sample_points`: places samples on the step axis;
      `thinning`: fewer points for longer runs.
    - `outputs`: all of them together; `fanout`: the background thread; `run_dir`, `storage`: where files go, and how.
- `report`: the account of a whole run, as `run_report.RunReport`.
- `session`: builds, starts and stops the parts.
- `watched`: `watch`, the dataset that stamps its batches.
- `callback`: `GPUWatch`, one line per Keras hook.
- `cli`, `demo`: the command `keras-gpu-watch`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from keras_gpu_watch._version import __version__

if TYPE_CHECKING:
    from keras_gpu_watch.callback import GPUWatch
    from keras_gpu_watch.watched import watch

__all__ = ["GPUWatch", "__version__", "watch"]

# Imported on first use: neither `import keras_gpu_watch` nor a TensorBoard that finds this package may load TensorFlow.
_HOMES = {"GPUWatch": "keras_gpu_watch.callback", "watch": "keras_gpu_watch.watched"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ImportError(
            f"`keras_gpu_watch.{name}` needs TensorFlow 2.18 or newer: pip install 'keras-gpu-watch[tensorflow]' "
            "(or your own build of it, such as tensorflow-cpu).",
            name="tensorflow",
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
