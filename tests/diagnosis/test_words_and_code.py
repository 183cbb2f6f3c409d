# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import ast

import pytest

from keras_gpu_watch.diagnosis.wording import duration, percent, times
from keras_gpu_watch.findings import AUTOTUNE, Stage
from keras_gpu_watch.stage_code import cached, function_name, with_parallel_calls


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.00042, "0.42 ms"),
        (0.0018, "1.8 ms"),
        (0.001, "1.0 ms"),
        (0.010, "10 ms"),
        (0.018, "18 ms"),
        (1.0, "1.0 s"),
        (10.0, "10 s"),
        (1.25, "1.2 s"),
        (75.0, "75 s"),
    ],
)
def test_a_duration_has_two_digits_in_its_unit(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("speedup", "text"),
    [
        (1.0, "1.00x"),
        (1.019, "1.01x"),
        (1.1, "1.1x"),
        (1.8, "1.8x"),
        (10.0, "10x"),
        (2.79, "2.7x"),
        (12.9, "12x"),
        (float("inf"), "many times"),
    ],
)
def test_a_bound_on_a_speed_up_is_never_rounded_up(speedup, text):
    assert times(speedup) == text


def test_a_share_is_written_in_percent():
    assert percent(0.234) == "23 %"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("decode", "decode"),
        ("Augmenter.flip", "Augmenter.flip"),
        ("lambda", "function"),
        (None, "function"),
        ("a b\n[red]", "a_b_red"),
        ("<lambda>", "function"),
        ("'; import os", "import_os"),
        ("1st", "function"),
        ("größe", "größe"),
    ],
)
def test_a_functions_name_becomes_a_name_of_python(function, name):
    assert function_name(Stage(index=0, op="map", function=function)) == name


@pytest.mark.parametrize(
    "op", ["map", "interleave", "flat_map", "batch", "padded_batch", "TFRecordDataset", "filter", "a\nb"]
)
@pytest.mark.parametrize("name", ["decode", "\n\"'[/red]", "ünï", "x" * 80])
def test_code_for_a_stage_parses_whatever_it_is_called(op, name):
    stage = Stage(index=0, op=op, function=name, source=f'{name}".py:1')

    for code in (with_parallel_calls(stage, 7), with_parallel_calls(stage, AUTOTUNE), cached(stage)):
        if code is not None:
            ast.parse(code)
            assert "\n" not in code
