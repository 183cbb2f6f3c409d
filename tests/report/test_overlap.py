# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typical_steps import ALL, BURSTY, COMPUTE_BOUND, INPUT_BOUND, ONE_STEP, STALLED, UNKNOWN, epoch_of

from keras_gpu_watch.report.overlap import LEAST_WIDTH, draw_overlap
from keras_gpu_watch.report.stretch import NO_PICTURE, PREPARE_UNKNOWN, axis_of, stretch_of


def lane(picture: str, name: str) -> str:
    (line,) = (line for line in picture.splitlines() if line.startswith(name))
    return line[8:]


def test_an_input_bound_stretch_is_drawn_with_its_gaps():
    assert draw_overlap(INPUT_BOUND, width=72) == (
        "prepare 1▒▒▒▒2▒▒▒▒▒▒▒3▒▒▒▒▒▒▒4▒▒▒▒▒▒▒5▒▒▒▒▒▒▒6▒▒▒▒▒▒▒7▒▒▒▒▒▒▒8▒▒▒▒▒▒▒\n"
        "train   ·····1██·····2██·····3██·····4██·····5██·····6██·····7██·····8██\n"
        "        ┴───────────────┴───────────────┴───────────────┴──────────────┴\n"
        "        0               100             200             300       400 ms\n"
        "▒ prepared  █ computed  · waiting  1-8: batches\n"
        "In these 8 steps the GPU idles 60 % of the time, waiting for batches."
    )


def test_a_terminal_that_only_knows_ascii_gets_the_same_picture_in_ascii():
    picture, plain = draw_overlap(BURSTY), draw_overlap(BURSTY, ascii_only=True)
    assert plain.isascii()
    assert picture.translate(str.maketrans("▒█░·─┴", "=#:.-+")) == plain


@pytest.mark.parametrize("width", [LEAST_WIDTH, 60, 72, 96])
@pytest.mark.parametrize("epoch", ALL)
def test_no_line_is_wider_than_asked_and_none_ends_in_blanks(epoch, width):
    for line in draw_overlap(epoch, width).splitlines():
        assert len(line) <= width
        assert line == line.rstrip()


def test_no_picture_is_narrower_than_one_can_read():
    assert draw_overlap(INPUT_BOUND, width=5) == draw_overlap(INPUT_BOUND, width=LEAST_WIDTH)


@pytest.mark.parametrize("epoch", ALL)
def test_columns_are_in_the_proportions_of_the_times(epoch):
    stretch = stretch_of(epoch)
    assert stretch is not None
    train = lane(draw_overlap(epoch, width=208), "train")
    assert len(train) == 200
    shown = {"idle": train.count("·"), "host": train.count("░")}
    shown["compute"] = len(train) - sum(shown.values())
    for kind, columns in shown.items():
        # Each block is rounded to columns, and each step's compute has one at least.
        assert columns / 200 == pytest.approx(stretch.share(kind), abs=8 / 200)  # type: ignore[arg-type]


@pytest.mark.parametrize("epoch", ALL)
def test_every_steps_compute_is_visible_and_numbered(epoch):
    numbers = [letter for letter in lane(draw_overlap(epoch), "train") if letter.isdigit()]
    assert numbers == [str(number + 1) for number in range(len(epoch.typical_steps))]


@given(st.lists(st.tuples(*[st.floats(0.0, 1.0)] * 3), min_size=1, max_size=8), st.integers(32, 120))
def test_training_is_drawn_without_holes(steps, width):
    picture = draw_overlap(epoch_of([(host, wait, 0.001 + compute) for host, wait, compute in steps]), width)
    train = lane(picture, "train")
    assert len(train) == width - 8
    assert not set(train) - set("12345678█░·")


@given(st.floats(1e-6, 1e5), st.integers(32, 120))
def test_labels_of_the_axis_are_apart_and_stand_near_their_ticks(seconds, width):
    line, labels = draw_overlap(epoch_of([(0.0, 0.0, seconds)]), width).splitlines()[2:4]
    *others, last, unit = labels.split()
    axis = axis_of(seconds)
    assert f"{last} {unit}" == axis.labels[-1]
    assert set(others) <= set(axis.labels)
    assert line.count("┴") == len(axis.labels)
    for label in others:
        tick = axis.ticks_seconds[axis.labels.index(label)]
        assert labels.index(f" {label} ") + 1 == 8 + round(tick / seconds * (width - 8))


def test_a_burst_is_prepared_while_training_waits_and_the_rest_is_not_back_to_back():
    prepare, train = lane(draw_overlap(BURSTY), "prepare"), lane(draw_overlap(BURSTY), "train")
    waiting = [column for column, letter in enumerate(train) if letter == "·"]
    assert len(waiting) >= 32
    assert {prepare[column] for column in waiting[1:]} <= {"▒"}
    assert " " in prepare.strip()


def test_preparing_that_keeps_up_leaves_gaps_in_its_lane_and_none_in_training():
    picture = draw_overlap(COMPUTE_BOUND)
    assert "·" not in lane(picture, "train")
    assert lane(picture, "prepare").split() == [f"{number}▒▒▒▒" for number in range(2, 9)]


def test_a_step_far_shorter_than_its_wait_keeps_one_column():
    assert lane(draw_overlap(STALLED), "train") == "".join(f"·······{number}" for number in range(1, 9))


def test_where_preparing_is_not_known_its_lane_says_so():
    picture = draw_overlap(ONE_STEP)
    assert lane(picture, "prepare") == PREPARE_UNKNOWN
    assert "▒" not in picture


@pytest.mark.parametrize("epoch", UNKNOWN)
def test_without_known_waits_there_is_a_sentence_instead_of_a_picture(epoch):
    assert draw_overlap(epoch) == NO_PICTURE
