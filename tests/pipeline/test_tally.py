# SPDX-License-Identifier: Apache-2.0
"""Sums over looks at models that are written by hand, so that every figure is exact."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from model_trees import Tree, chain, model, tree

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline.matching import match
from keras_gpu_watch.pipeline.model_tree import Knob
from keras_gpu_watch.pipeline.stage_figures import NOT_CAUGHT, NOT_SEEN, REMOVED, measured_stages
from keras_gpu_watch.pipeline.tally import EpochTally


def measured(stages: tuple[Stage, ...], *looks: Tree, is_same_iterator: bool = True) -> dict[str, Stage]:
    """The stages after some looks, by their ops."""
    epoch = EpochTally(stages)
    for top in looks:
        live = model(top)
        epoch.look(match(epoch.stages, live), live, is_same_iterator=is_same_iterator)
    return {stage.op: stage for stage in measured_stages(epoch)}


def node(name: str, *below: Tree, n: int, seconds: float = 0.0, ratio: float | None = 1, **fields: Any) -> Tree:
    return tree(name, *below, elements=n, own_seconds=seconds, inputs_per_element=ratio, **fields)


def batched(n: int, *below: Tree) -> Tree:
    return node("BatchV2", *below, id=2, n=n, ratio=4)


def test_figures_are_the_growth_between_the_first_look_and_the_last():
    def top(n: int, seconds: float) -> Tree:
        return batched(n, node("Map", id=3, n=4 * n, seconds=seconds, bytes_given=32 * n))

    found = measured(chain("map", "batch"), top(1, 100.0), top(3, 101.0), top(11, 120.0))
    assert found["map"].elements == 40
    assert found["map"].elements_per_batch == 4
    assert found["map"].busy_seconds_per_batch == pytest.approx(2.0)
    assert found["map"].bytes_per_element == 8
    assert found["batch"].elements == 10


def test_one_look_tells_all_since_the_iterators_begin():
    found = measured(chain("map", "batch"), batched(5, node("Map", id=3, n=20, seconds=40.0)))
    assert found["map"].elements == 20
    assert found["map"].busy_seconds_per_batch == pytest.approx(8.0)


def test_another_iterator_with_the_same_ids_counts_from_its_own_begin():
    def top(n: int, seconds: float) -> Tree:
        return batched(n, node("Map", id=3, n=4 * n, seconds=seconds))

    found = measured(chain("map", "batch"), top(2, 8.0), top(10, 80.0), is_same_iterator=False)
    assert found["map"].elements == 40
    assert found["map"].busy_seconds_per_batch == pytest.approx(8.0)


def test_nodes_that_repeat_made_anew_count_from_their_own_begin():
    def top(n: int, turn: int, inner: int, seconds: float) -> Tree:
        return batched(n, node("ForeverRepeat", node("Map", id=turn, n=inner, seconds=seconds), id=3, n=4 * n))

    found = measured(
        chain("map", "repeat", "batch"), top(2, 10, 8, 16.0), top(4, 10, 16, 32.0), top(6, 11, 3, 6.0), top(8, 12, 2, 4)
    )
    assert found["map"].elements == 8 + 3 + 2
    assert found["map"].elements_per_batch == 4
    assert found["map"].busy_seconds_per_batch == pytest.approx(8.0)


def test_a_node_made_anew_is_known_by_its_id_even_if_it_gave_more_than_the_one_before():
    def top(n: int, turn: int, inner: int) -> Tree:
        return batched(n, node("FiniteRepeat", node("Map", id=turn, n=inner, seconds=inner), id=3, n=4 * n))

    assert measured(chain("map", "repeat", "batch"), top(1, 10, 4), top(3, 11, 5))["map"].elements == 5


def test_work_done_for_what_is_still_in_the_buffer_is_not_taken_for_slowness():
    def top(n: int, buffered: int) -> Tree:
        knobs = {"parallelism": Knob(8, 4)}
        counters: dict[str, Any] = {"n": 4 * n, "buffered_elements": buffered, "seconds": 2.0 * (4 * n + buffered)}
        return batched(n, node("ParallelMapV2", id=3, is_asynchronous=True, knobs=knobs, **counters))

    found = measured(chain("map", "batch"), top(1, 0), top(2, 4))
    assert found["map"].busy_seconds_per_batch == pytest.approx(8.0)
    assert (found["map"].parallelism, found["map"].parallelism_max) == (4, 4)
    assert found["map"].buffered_elements == 2


def cached(n: int, below: Tree | None, cache_id: int = 3) -> Tree:
    inside = node("MemoryCacheImpl", *([below] if below else []), id=cache_id + 100, n=4 * n)
    return batched(n, node("MemoryCache", inside, id=cache_id, n=4 * n))


def test_stages_below_a_filled_cache_are_measured_as_idle():
    found = measured(chain("range", "map", "cache", "batch"), cached(1, None), cached(9, None))
    for op in ("range", "map"):
        assert (found[op].elements, found[op].elements_per_batch, found[op].busy_seconds_per_batch) == (0, 0, 0)
        assert found[op].reason is None
    assert found["cache"].elements_per_batch == 4


def test_stages_below_a_cache_that_is_being_filled_work_for_each_element():
    def below(n: int) -> Tree:
        return node("Map", id=9, n=n, seconds=2.0 * n)

    found = measured(chain("map", "cache", "batch"), cached(1, below(4)), cached(9, below(37)))
    assert found["map"].elements_per_batch == 4
    assert found["map"].busy_seconds_per_batch == pytest.approx(8.0)


def test_a_cache_whose_input_came_to_its_end_needed_it_for_all_of_this_pass():
    looks = [cached(1, node("Map", id=9, n=4, seconds=8.0)), cached(9, None)]
    assert measured(chain("map", "cache", "batch"), *looks)["map"].elements_per_batch == 4


def test_a_cache_that_is_filled_in_mid_epoch_needed_its_input_for_a_part_of_it():
    looks = [cached(n, node("Map", id=9, n=4 * n, seconds=8.0 * n)) for n in (1, 5, 11)]
    looks += [cached(n, None, cache_id=20) for n in (10, 20)]
    found = measured(chain("map", "cache", "batch"), *looks)
    # Ten batches came by the map, twenty from the cache.
    assert found["map"].elements_per_batch == pytest.approx(4 / 3)
    assert found["map"].busy_seconds_per_batch == pytest.approx(8 / 3)


def shuffled(n: int, buffered: int, below: Tree | None) -> Tree:
    buffer = {"id": 3, "buffered_elements": buffered}
    return batched(n, node("Shuffle", *([below] if below else []), n=4 * n, **buffer))


def test_a_shuffle_that_keeps_its_buffer_full_needs_an_element_for_each():
    looks = [shuffled(n, 50, node("Map", id=9, n=4 * n + 50, seconds=4.0 * n + 50)) for n in (1, 11)]
    assert measured(chain("map", "shuffle", "batch"), *looks)["map"].busy_seconds_per_batch == pytest.approx(4.0)


def test_a_shuffle_that_fills_its_buffer_anew_needs_no_more_than_it_gives_in_the_long_run():
    def top(n: int, turn: int, inner: int) -> Tree:
        source = node("Map", id=turn + 50, n=inner + 50)
        shuffle = node("Shuffle", source, id=turn, n=inner, buffered_elements=50)
        return batched(n, node("FiniteRepeat", shuffle, id=3, n=4 * n))

    stages = chain("map", "shuffle", "repeat", "batch")
    assert measured(stages, top(1, 10, 4), top(11, 11, 30))["map"].elements_per_batch == 4


def test_a_shuffle_that_empties_its_buffer_needs_fewer():
    looks = [shuffled(1, 40, node("Map", id=9, n=44, seconds=88.0)), shuffled(11, 20, None)]
    found = measured(chain("map", "shuffle", "batch"), *looks)
    assert found["map"].elements_per_batch == pytest.approx(2.0)
    assert found["map"].busy_seconds_per_batch == pytest.approx(4.0)


def test_a_shuffle_of_all_elements_needs_none_once_it_is_filled():
    looks = [shuffled(1, 40, node("Map", id=9, n=44, seconds=88.0)), shuffled(11, 0, None)]
    found = measured(chain("map", "shuffle", "batch"), *looks)
    assert found["map"].elements == 0
    assert found["map"].elements_per_batch == 0
    assert found["map"].busy_seconds_per_batch == 0


def test_what_a_filter_drops_is_measured():
    looks = [
        batched(n, node("Filter", node("Map", id=4, n=12 * n, seconds=n), id=3, n=4 * n, ratio=None)) for n in (1, 5)
    ]
    found = measured(chain("map", "filter", "batch"), *looks)
    assert found["map"].elements_per_batch == pytest.approx(12.0)
    assert found["map"].busy_seconds_per_batch == pytest.approx(1.0)


def test_a_filter_whose_input_was_never_seen_leaves_it_unknown():
    looks = [batched(n, node("Filter", id=3, n=4 * n, ratio=None)) for n in (1, 5)]
    found = measured(chain("map", "filter", "batch"), *looks)
    assert (found["map"].elements_per_batch, found["map"].busy_seconds_per_batch) == (None, None)
    assert found["map"].reason == NOT_SEEN


def test_an_opener_works_by_the_datasets_that_were_caught_alive():
    def top(n: int, turn: int, caught: int) -> Tree:
        inner = node("Map", id=turn, n=caught, seconds=2.0 * caught)
        return batched(n, node("FlatMap", node("Range", id=4, n=n), inner, id=3, n=4 * n, seconds=4.0 * n, ratio=None))

    found = measured(chain("range", "flat_map", "batch"), top(1, 10, 1), top(6, 11, 3), top(11, 12, 0))
    assert found["flat_map"].busy_seconds_per_batch == pytest.approx(4 * (1 + 2))
    assert found["range"].elements_per_batch == pytest.approx(1.0)


def test_an_opener_none_of_whose_datasets_was_caught_is_not_measured():
    looks = [
        batched(n, node("FlatMap", node("Range", id=4, n=n), id=3, n=4 * n, seconds=n, ratio=None)) for n in (1, 5)
    ]
    found = measured(chain("range", "flat_map", "batch"), *looks)
    assert found["flat_map"].busy_seconds_per_batch is None
    assert found["flat_map"].reason == NOT_CAUGHT
    assert found["range"].busy_seconds_per_batch == 0


def test_parallel_work_inside_an_opened_dataset_is_shared_by_its_calls():
    def top(n: int) -> Tree:
        inner = node("ParallelMapV2", id=9, n=4 * n, seconds=8.0 * n, knobs={"parallelism": Knob(2, 2)})
        return batched(n, node("FlatMap", node("Range", id=4, n=1), inner, id=3, n=4 * n, ratio=None))

    assert measured(chain("range", "flat_map", "batch"), top(1), top(5))["flat_map"].busy_seconds_per_batch == 4.0


def test_the_map_of_a_fused_map_and_batch_has_the_work_and_the_batch_what_comes_out():
    def top(n: int) -> Tree:
        fields = {"bytes_given": 64 * n, "buffered_elements": 3, "buffered_bytes": 192}
        return node("MapAndBatch", id=2, n=n, seconds=2.0 * n, ratio=8, knobs={"parallelism": Knob(16, 4)}, **fields)

    found = measured(chain("map", "batch"), top(1), top(11))
    assert (found["map"].elements, found["map"].elements_per_batch) == (80, 8)
    assert (found["map"].busy_seconds_per_batch, found["map"].parallelism) == (2.0, 4)
    assert (found["map"].bytes_per_element, found["map"].buffered_elements) == (None, None)
    assert (found["batch"].elements, found["batch"].elements_per_batch) == (10, 1)
    assert (found["batch"].bytes_per_element, found["batch"].buffered_elements) == (64, 3)
    assert found["batch"].busy_seconds_per_batch is None
    assert "map" in (found["batch"].reason or "")


def test_a_stage_that_was_left_out_is_looked_through():
    looks = [batched(n, node("Map", id=3, n=4 * n, seconds=n)) for n in (1, 5)]
    found = measured(chain("map", "take", "batch"), *looks)
    assert found["take"].reason == REMOVED
    assert found["take"].elements is None
    assert found["map"].elements_per_batch == 4


def test_a_stage_that_turns_up_later_finds_its_place():
    first = batched(1, node("Map", id=3, n=4, seconds=1))
    later = [
        batched(n, node("Prefetch", node("Map", id=3, n=4 * n, seconds=n), id=9, n=4 * n, is_asynchronous=True))
        for n in (3, 5)
    ]
    found = measured(chain("map", "batch"), first, *later)
    assert found["map"].busy_seconds_per_batch == pytest.approx(1.0)
    assert (found["prefetch"].added_by, found["prefetch"].index) == ("tensorflow", 1)
    assert found["prefetch"].elements == 20
    assert (found["batch"].elements, found["batch"].inputs) == (4, (1,))


def test_the_buffer_of_a_shuffle_is_as_written():
    stages = chain("range", "shuffle", "batch")
    stages = (stages[0], dataclasses.replace(stages[1], buffer_size=40), stages[2])
    assert measured(stages, shuffled(1, 40, None))["shuffle"].buffer_limit == 40
    assert measured(chain("range", "shuffle", "batch"), shuffled(1, 40, None))["shuffle"].buffer_limit is None


def test_concatenated_datasets_share_the_elements():
    stages = (*chain("range"), Stage(index=1, op="map"), Stage(index=2, op="concatenate", inputs=(0, 1)))

    def top(n: int, first: int, second: int | None) -> Tree:
        below = [node("Range", id=4, n=first)] + ([node("Map", id=5, n=second)] if second is not None else [])
        return node("Concatenate", *below, id=3, n=n)

    found = measured(stages, top(2, 2, None), top(6, 6, None), top(10, 7, 3))
    assert found["range"].elements_per_batch == pytest.approx(5 / 8)
    assert found["map"].elements_per_batch == pytest.approx(3 / 8)
