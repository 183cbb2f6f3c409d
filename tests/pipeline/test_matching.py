# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_trees import Tree, chain, model, names, tree

from keras_gpu_watch.findings import Stage
from keras_gpu_watch.pipeline.matching import match


def test_stages_are_found_at_nodes_of_the_same_word():
    live = model(tree("Prefetch", tree("BatchV2", tree("ParallelMapV2", "TensorSlice"))))
    found = match(chain("from_tensor_slices", "map", "batch", "prefetch"), live)
    assert names(found, live) == [
        ("from_tensor_slices", "TensorSlice"),
        ("map", "ParallelMapV2"),
        ("batch", "BatchV2"),
        ("prefetch", "Prefetch"),
    ]
    assert found.origins == (0, 1, 2, 3)
    assert not found.passed


def test_an_injected_prefetch_becomes_a_stage_of_tensorflow_at_its_place():
    live = model(tree("BatchV2", tree("Prefetch", tree("Map", "Range"))))
    found = match(chain("range", "map", "batch"), live)
    assert [(stage.op, stage.added_by, stage.inputs) for stage in found.stages] == [
        ("range", "user", ()),
        ("map", "user", (0,)),
        ("prefetch", "tensorflow", (1,)),
        ("batch", "user", (2,)),
    ]
    assert [stage.index for stage in found.stages] == [0, 1, 2, 3]
    assert found.origins == (0, 1, None, 2)


def test_what_was_completed_once_is_found_again_as_it_is():
    live = model(tree("Prefetch", tree("MapAndBatch", tree("ShuffleAndRepeat", tree("Prefetch", "Range")))))
    first = match(chain("range", "shuffle", "repeat", "take", "map", "batch"), live)
    again = match(first.stages, live)
    assert again.stages == first.stages
    assert again.places == first.places
    assert again.origins == tuple(range(len(first.stages)))


def test_a_fused_map_and_batch_stands_at_the_map():
    live = model(tree("MapAndBatch", "Range"))
    found = match(chain("range", "map", "batch"), live)
    assert names(found, live) == [("range", "Range"), ("map", "MapAndBatch"), ("batch", None)]
    assert [stage.fused_with for stage in found.stages] == [(), (2,), (1,)]


def test_a_stage_left_out_between_two_that_are_fused_is_passed():
    found = match(chain("range", "map", "take", "batch"), model(tree("MapAndBatch", "Range")))
    assert [stage.fused_with for stage in found.stages] == [(), (3,), (), (1,)]
    assert found.passed == {2}


def test_a_fused_shuffle_and_repeat_stands_at_the_shuffle():
    live = model(tree("BatchV2", tree("ShuffleAndRepeat", "Range")))
    found = match(chain("range", "shuffle", "repeat", "batch"), live)
    assert names(found, live)[1:3] == [("shuffle", "ShuffleAndRepeat"), ("repeat", None)]
    assert [stage.fused_with for stage in found.stages] == [(), (2,), (1,), ()]


def test_stages_fused_over_an_injected_node_keep_their_partners():
    live = model(tree("MapAndBatch", tree("Prefetch", "Range")))
    found = match(chain("range", "map", "batch"), live)
    assert [(stage.op, stage.fused_with) for stage in found.stages] == [
        ("range", ()),
        ("prefetch", ()),
        ("map", (3,)),
        ("batch", (2,)),
    ]


def test_a_stage_that_tensorflow_left_out_is_passed():
    live = model(tree("BatchV2", tree("Map", "Range")))
    found = match(chain("range", "map", "repeat", "take", "batch"), live)
    assert names(found, live)[1:] == [("map", "Map"), ("repeat", None), ("take", None), ("batch", "BatchV2")]
    assert found.passed == {2, 3}


def test_a_left_out_stage_below_a_prefetch_is_not_taken_for_it():
    live = model(tree("Prefetch", tree("Map", "Range")))
    found = match(chain("range", "map", "take"), live)
    assert names(found, live) == [("range", "Range"), ("map", "Map"), ("take", None), ("prefetch", "Prefetch")]
    assert found.passed == {2}


def test_a_stage_and_a_node_of_unknown_names_are_the_same_where_both_sides_agree_below():
    live = model(tree("BatchV2", tree("NewFangledV3", tree("Map", "Range"))))
    found = match(chain("range", "map", "new_word", "batch"), live)
    assert names(found, live)[2] == ("new_word", "NewFangledV3")
    assert not found.passed


def test_a_stage_is_never_found_at_a_node_that_is_known_for_another():
    live = model(tree("Map", "Range"))
    assert match(chain("range", "shuffle"), live).places[1] is None
    assert match(chain("filter"), live).places == (None,)


def test_stages_below_the_last_living_node_are_missing_but_not_passed():
    live = model(tree("BatchV2", "Shuffle"))
    found = match(chain("range", "map", "shuffle", "batch"), live)
    assert names(found, live) == [("range", None), ("map", None), ("shuffle", "Shuffle"), ("batch", "BatchV2")]
    assert not found.passed


def test_a_generator_is_one_stage_of_several_nodes():
    live = model(tree("BatchV2", tree("FlatMap", "FromTensor", "Generator")))
    source = match(chain("from_generator", "batch"), live).places[0]
    assert source is not None
    assert [live.nodes[part].name for part in (source.node, *source.parts)] == ["FlatMap", "FromTensor"]
    assert [live.nodes[head].name for head in source.opened] == ["Generator"]


def test_a_cache_is_one_stage_of_two_nodes_and_its_input_is_below_both():
    live = model(tree("MemoryCache", tree("MemoryCacheImpl", tree("Map", "Range"))))
    found = match(chain("range", "map", "cache"), live)
    assert names(found, live) == [("range", "Range"), ("map", "Map"), ("cache", "MemoryCache")]
    cache = found.places[2]
    assert cache is not None
    assert [live.nodes[part].name for part in cache.parts] == ["MemoryCacheImpl"]


def test_the_numbers_of_an_enumerate_are_its_own():
    live = model(tree("Zip", "Range", tree("Map", "TensorSlice")))
    found = match(chain("from_tensor_slices", "map", "enumerate"), live)
    assert names(found, live) == [("from_tensor_slices", "TensorSlice"), ("map", "Map"), ("enumerate", "Zip")]


def test_the_selector_of_sampled_datasets_is_their_own():
    live = model(tree("DirectedInterleave", tree("ParallelMapV2", "Random"), "Range", tree("Map", "Range")))
    stages = (*chain("range"), Stage(index=1, op="range"), Stage(index=2, op="map", inputs=(1,)))
    found = match((*stages, Stage(index=3, op="sample_from_datasets", inputs=(0, 2))), live)
    assert names(found, live)[2:] == [("map", "Map"), ("sample_from_datasets", "DirectedInterleave")]
    sample = found.places[3]
    assert sample is not None
    assert [live.nodes[part].name for part in sample.parts] == ["ParallelMapV2", "Random"]


def test_datasets_that_an_interleave_opened_are_not_its_input():
    inner = [tree("Map", "Range") for _ in range(3)]
    live = model(tree("ParallelInterleaveV4", "TensorSlice", *inner))
    found = match(chain("from_tensor_slices", "interleave"), live)
    place = found.places[1]
    assert place is not None
    assert [live.nodes[head].name for head in place.opened] == ["Map"] * 3
    assert names(found, live)[0] == ("from_tensor_slices", "TensorSlice")


def test_branches_of_a_zip_are_told_apart():
    live = model(tree("Zip", tree("Map", "Range"), tree("Prefetch", tree("Filter", "Range"))))
    stages = (
        *chain("range", "map"),
        Stage(index=2, op="range"),
        Stage(index=3, op="filter", inputs=(2,)),
        Stage(index=4, op="zip", inputs=(1, 3)),
    )
    found = match(stages, live)
    assert [(stage.op, stage.inputs) for stage in found.stages] == [
        ("range", ()),
        ("map", (0,)),
        ("range", ()),
        ("filter", (2,)),
        ("prefetch", (3,)),
        ("zip", (1, 4)),
    ]
    assert None not in found.places


STAMPED = tree("Map", tree("Zip", tree("Map", "Range"), tree("BatchV2", "Range")))


def test_our_own_stages_are_left_out_of_a_stamped_iterator():
    live = model(STAMPED)
    assert names(match(chain("range", "batch"), live, is_stamped=True), live) == [
        ("range", "Range"),
        ("batch", "BatchV2"),
    ]


def test_a_user_whose_pipeline_has_the_shape_of_our_stages_keeps_them():
    stages = (
        *chain("range", "map"),
        Stage(index=2, op="range"),
        Stage(index=3, op="batch", inputs=(2,)),
        Stage(index=4, op="zip", inputs=(1, 3)),
        Stage(index=5, op="map", inputs=(4,)),
    )
    assert None not in match(stages, model(STAMPED)).places


def test_without_objects_the_stages_are_the_nodes_in_our_words():
    live = model(tree("Prefetch", tree("BatchV2", tree("Zip", tree("FlatMap", "FromTensor", "Generator"), "TFRecord"))))
    found = match((), live)
    assert [(stage.op, stage.inputs) for stage in found.stages] == [
        ("from_generator", ()),
        ("TFRecordDataset", ()),
        ("zip", (0, 1)),
        ("batch", (2,)),
        ("prefetch", (3,)),
    ]
    assert None not in found.places
    assert match(found.stages, live).stages == found.stages


def test_two_hundred_stages_are_matched():
    top = tree("Range")
    for _ in range(100):
        top = tree("ParallelMapV2", tree("FiniteTake", top))
    found = match(chain("range", *["take", "map"] * 100), model(top))
    assert None not in found.places


def test_a_model_without_a_node_matches_nothing():
    live = model(tree("BatchV2", "Range"))
    found = match(chain("range", "batch"), type(live)(nodes={}, output=1))
    assert found.places == (None, None)


WORDS = ["map", "batch", "prefetch", "zip", "cache", "repeat", "shuffle", "flat_map", "new_word", "from_generator"]
NODES = ["ParallelMapV2", "BatchV2", "Prefetch", "Zip", "MemoryCache", "MemoryCacheImpl", "ShuffleAndRepeat", "FlatMap"]
trees = st.recursive(
    st.sampled_from([*NODES, "Range", "Generator", "MapAndBatch", "Née"]).map(tree),
    lambda below: st.builds(lambda name, inputs: tree(name, *inputs), st.sampled_from(NODES), st.lists(below)),
    max_leaves=12,
)


@st.composite
def stage_lists(draw: st.DrawFn) -> tuple[Stage, ...]:
    """Any trees of stages, the last one on top."""
    stages: list[Stage] = []
    free: list[int] = []
    for index in range(draw(st.integers(0, 12))):
        count = draw(st.integers(0, min(3, len(free))))
        inputs = tuple(free.pop() for _ in range(count))
        stages.append(Stage(index=index, op=draw(st.sampled_from(WORDS)), inputs=inputs))
        free.append(index)
    return tuple(stages)


@settings(deadline=None)
@given(stages=stage_lists(), top=trees, is_stamped=st.booleans())
def test_any_two_trees_give_a_sound_match(stages: tuple[Stage, ...], top: Tree, is_stamped: bool):
    live = model(top)
    found = match(stages, live, is_stamped=is_stamped)
    assert [stage.index for stage in found.stages] == list(range(len(found.stages)))
    assert all(below < stage.index for stage in found.stages for below in stage.inputs)
    assert len(found.places) == len(found.origins) == len(found.stages)
    if stages:
        kept = [origin for origin in found.origins if origin is not None]
        assert kept == list(range(len(stages)))
    used = [node for place in found.places if place for node in (place.node, *place.parts)]
    assert len(used) == len(set(used))
    assert all(found.places[index] is None for index in found.passed)


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_concatenation_whose_later_inputs_have_not_begun_is_matched_from_the_first_on(missing):
    branches = [tree("Map", "Range") for _ in range(4 - missing)]
    stages: list[Stage] = []
    for _ in range(4):
        stages += [Stage(index=len(stages), op="range"), Stage(index=len(stages) + 1, op="map", inputs=(len(stages),))]
    stages.append(Stage(index=8, op="concatenate", inputs=(1, 3, 5, 7)))
    found = match(stages, model(tree("Concatenate", *branches)))
    expected = [True] * 2 * (4 - missing) + [False] * 2 * missing + [True]
    assert [place is not None for place in found.places] == expected
