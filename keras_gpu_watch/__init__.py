# SPDX-License-Identifier: Apache-2.0
"""Where every second of a Keras training goes.

```python
from keras_gpu_watch import GPUWatch, watch

model.fit(watch(train_ds), epochs=5, callbacks=[GPUWatch("logs")])
```

The map (what each part may import is checked by `tests/test_architecture.py`):

- `records`, `samples`, `findings`, `knobs`, `stage_code`, `tags`, `clock`, `guard`: the words that all parts share:
  records, Python to paste, names, clocks, one guard.
- `probes`: each reads one place of the user's program or machine.
    - `step_timer`: the train function's calls; `device_values`: waits until their values are there.
    - `wait_source`: how long a step waited: `stamp_source` knows it from stamps in the graph (`stamp`), `gap_source`
      from tf.data's own statistics (`iterator_model`); `sources` chooses.
    - `train_function`: looks through the wrappers on a train function.
    - `sampler`: the thread that reads GPUs and host. `gpu_sampler` survives what NVML does; `gpu_card` reads one GPU
      through `nvml`, whose errors `nvml_errors` puts into words; `gpu_identity` finds the GPUs that are used, from what
      `cuda` and `framework_gpus` tell. `host_sampler` reads CPU, memory and disk; `host_limits`: what may be used;
      `interpreter_lock`: how often Python code holds it.
    - `callback_timer`: what other callbacks' hooks take; `epoch_iterator`: the dataset that `fit` holds.
    - `boundaries`: when the run, its epochs, its validations begin and end; `model_facts`: what the model tells.
- `recorder`: holds steps and samples, and hands out one epoch's.
- `accounting`: pure arithmetic, from an epoch's steps to its account: `totals` of steps, the `summary` made of them,
  and some `typical` steps.
- `device_accounting`: the same for samples: `statistics`, `energy`, `swings`, and `sentences` for what stands out.
- `ledger`: the account of the epoch under way, from recorder and accounting.
- `pipeline`: the input pipeline's stages.
    - `dataset_objects` reads them from the user's `tf.data` objects, with `composites` (one public method, several
      objects), `user_functions` (names and source lines), `function_graphs` (Python code, state) and `keras_adapters`.
    - `live_model` reads tf.data's model of the live iterator into a `model_tree`; `matching` finds each stage's node in
      it, by `node_names`; `readings` and `tally` sum up an epoch's looks, `stage_figures` says what they mean; `blame`
      shares the wait out.
    - `stages`: all of it together.
    - `rebuild` builds the user's pipeline again with other knobs: `reissue` issues each op once more, on what
      `hidden_settings` reads from TensorFlow's own graph where `held_data` is small enough.
    - `tunable` tells which knobs may be turned: `barriers` keep what lies below them, `call_order` keeps state in its
      order; `object_chain`, `element_size` and `shape_key` help. `saving`: checkpoints of iterators.
- `diagnosis`: pure, from an epoch's account to verdicts.
    - `rules`: a module for each kind of trouble: `input_bound` with its causes in `buffers`, `python_code` and `cores`;
      `lock`, `epoch_parts`, `first_epoch`, `host`, `step`, `compute`, `gpu`. `all_rules` lists them.
    - `rule`: what a rule is; `context`: what it looks at; `thresholds`: its numbers; `forecast`: what a cure may gain;
      `waiting`: whether a stage computes; `caching`: whether the data fits into memory; `wording`: what is said.
    - `diagnose` applies the rules, to a run after `pooling` its epochs; `verdicts_page` makes docs/verdicts.md.
- `explainer`: looks at the live pipeline, and adds stages and verdict to the account.
- `tuning`: pure, from an epoch's account to the settings of the next one.
    - `tuner`: goes from `state` to state. `strategy`: what to try next, from the `evidence`, by `calls` and `buffers`;
      `rate`: whether it helped; `room`: what is allowed; `memory`: what buffers may hold; `stage_memory`: what short
      epochs leave out; `trial_book`: all trials; `state_file`: how the best settings are saved.
    - `limits`: `AutoTune`, and the numbers of all decisions; `wording`: its sentences, its settings as code.
- `autotuning`: between epochs, asks the tuner and turns the watched dataset's knobs.
- `bookkeeper`: closes an epoch: its account from the ledger, its explanation, and the tuner's decision.
- `sinks`: outputs.
    - `tensorboard_events`, `json_report`, `console`: one each; `sample_points`: places samples on the step axis;
      `thinning`: fewer points for longer runs; `finding_scalars`: those of stages and callbacks.
    - The console's parts: `epoch_words`, `epoch_table`, `stage_table`, `verdict_words`, and `wording` for numbers.
    - `outputs`: all of them together; `fanout`: the background thread; `run_dir`, `storage`: where files go, and how.
- `report`: the account of a whole run, as `run_report.RunReport`, and while it runs as `live_report.LiveReport`;
  `json_form`: as JSON. The picture of an epoch: `stretch` lays steps out in time, `overlap` and `overlap_svg` draw.
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
    from keras_gpu_watch.tuning import AutoTune
    from keras_gpu_watch.watched import watch

__all__ = ["AutoTune", "GPUWatch", "__version__", "watch"]

# Imported on first use: neither `import keras_gpu_watch` nor a TensorBoard that finds this package may load TensorFlow.
_HOMES = {
    "AutoTune": "keras_gpu_watch.tuning",
    "GPUWatch": "keras_gpu_watch.callback",
    "watch": "keras_gpu_watch.watched",
}


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
