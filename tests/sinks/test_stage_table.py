# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from keras_gpu_watch.findings import AUTOTUNE, Stage
from keras_gpu_watch.sinks.stage_table import MAX_ROWS, footnotes, stage_table


def make_stage(**changes: Any) -> Stage:
    """A map of which everything is measured."""
    fields: dict[str, Any] = {
        "index": 2,
        "op": "map",
        "function": "decode",
        "source": "train.py:42",
        "num_parallel_calls": AUTOTUNE,
        "elements_per_batch": 32.0,
        "busy_seconds_per_batch": 0.0641,
        "parallelism": 2.0,
        "parallelism_max": 16.0,
        "buffered_elements": 1.44,
        "buffer_limit": 2.0,
        "bytes_per_element": 602112.0,
        "capacity_batches_per_second": 31.25,
        "wait_share": 0.982,
    }
    return Stage(**{**fields, **changes})


def rows_of(stages: Sequence[Stage], wide: bool = True) -> list[str]:
    """The table's lines below its head, with single blanks."""
    output = io.StringIO()
    console = Console(file=output, width=300)
    console.print(stage_table(stages, wide))
    lines = [" ".join(line.split()) for line in output.getvalue().splitlines()]
    (head,) = (number for number, line in enumerate(lines) if line.startswith("\N{BOX DRAWINGS LIGHT HORIZONTAL}"))
    return [line for line in lines[head + 1 :] if line]


def test_a_stage_shows_everything_that_is_known_of_it():
    assert rows_of([make_stage()]) == ["2 map(decode) train.py:42 32 64.1 2/16* 1.4/2 588 KiB 31.2 98 %"]
    assert footnotes([make_stage()], None) == ["* left to AUTOTUNE"]


def test_a_narrow_table_has_the_source_line_below_the_stages_name():
    assert rows_of([make_stage()], wide=False) == [
        "2 map(decode) 32 64.1 2/16* 1.4/2 588 KiB 31.2 98 %",
        "train.py:42",
    ]


def test_only_what_was_left_to_autotune_is_marked():
    fixed = make_stage(num_parallel_calls=4, parallelism=4.0, parallelism_max=None)
    assert "32 64.1 4 1.4/2 588" in rows_of([fixed])[0]
    assert footnotes([fixed], None) == []
    prefetch = make_stage(op="prefetch", num_parallel_calls=None, buffer_size=AUTOTUNE)
    assert "2/16 1.4/2* 588" in rows_of([prefetch])[0]
    assert footnotes([prefetch], None) == ["* left to AUTOTUNE"]


def test_what_is_not_measured_is_a_dash_and_a_measured_zero_is_zero():
    bare = Stage(index=0, op="range", reason="not in the model")
    zero = make_stage(
        num_parallel_calls=None, wait_share=0.0, busy_seconds_per_batch=0.0, buffered_elements=0.0, buffer_limit=None
    )
    assert rows_of([bare, zero]) == [
        "0 range - - - - - - - -",
        "2 map(decode) train.py:42 32 0.00 2/16 0 588 KiB 31.2 0 %",
    ]
    assert footnotes([bare, zero], None) == ["Not measured: not in the model"]
    assert footnotes([bare, zero], "autotune is off") == ["Not measured: autotune is off"]


def test_columns_without_anything_in_them_are_left_out():
    bare = [Stage(index=0, op="range"), Stage(index=1, op="batch", elements_per_batch=1.0)]
    assert rows_of(bare) == ["0 range -", "1 batch 1"]


def test_stages_that_others_added_and_those_that_run_together_are_marked():
    stages = [
        make_stage(index=0, fused_with=(1,)),
        Stage(index=1, op="batch", fused_with=(0,), reason="runs as one stage with 0"),
        Stage(index=2, op="map", added_by="keras"),
        Stage(index=3, op="prefetch", added_by="tensorflow"),
    ]
    rows = rows_of(stages)
    assert rows[1::2] == ["fused with 1", "fused with 0", "added by Keras", "added by TensorFlow"]
    assert [row.split()[1] for row in rows[::2]] == ["map(decode)", "batch", "map", "prefetch"]
    assert footnotes(stages, None) == ["* left to AUTOTUNE"]


def test_work_that_is_too_little_to_show_is_not_shown_as_none():
    assert " 32 <0.01 2/16" in rows_of([make_stage(busy_seconds_per_batch=4e-6)])[0]


def test_names_of_the_users_code_are_text():
    hostile = make_stage(function="[b]f[/b]\n\x1b[31m", source="[link=x]a.py[/link]:1")
    (row,) = rows_of([hostile])
    assert row.startswith(r"2 map([b]f[/b]\n\x1b[31m) ")
    assert "[link=x]a.py[/link]:1" in row


def test_long_names_are_cut_and_a_source_keeps_its_line_number():
    rows = rows_of([make_stage(function="f" * 200, source=f"/{'folder/' * 40}input.py:142")], wide=False)
    assert len(rows[0].partition(" 32 ")[0]) == 23
    assert rows[1].endswith("ut.py:142")


def test_a_huge_pipeline_shows_the_stages_that_do_most_in_their_order():
    stages = [Stage(index=n, op="map", busy_seconds_per_batch=0.001 * (n % 50)) for n in range(100)]
    shown = [int(row.split()[0]) for row in rows_of(stages)]
    assert shown == [n for n in range(100) if n % 50 >= 30]
    assert len(shown) == MAX_ROWS
    assert footnotes(stages, None) == ["60 stages that do less are not shown"]
