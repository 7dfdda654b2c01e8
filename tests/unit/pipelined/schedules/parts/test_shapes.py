"""Shapes that a schedule cannot take are refused with the remedy, and GEMS' two pipes share the microbatches."""

import pytest

from pipelined.schedules import ScheduleError, Shape, default_depth, find


@pytest.mark.parametrize(
    "name, shape, message",
    [
        ("chimera", Shape(5, 4), "needs an even depth (depth: 5); use `depth=4` or 6, or a schedule that takes any"),
        ("chimera", Shape(8, 8, {"pipes": 6}), "(pipes: 6, depth: 8); `pipes=` can be 2, 4, 8"),
        ("chimera", Shape(8, 8, {"chunks": 2}), "(chunks: 2); use `chunks=1`"),
        (
            "chimera",
            Shape(8, 16, {"pipes": 4, "scale": "forward-doubling"}),
            "takes two pipes (pipes: 4); use `pipes=2` or `scale=",
        ),
        (
            "chimera",
            Shape(4, 6, {"scale": "backward-halving"}),
            "(microbatches: 6, depth: 4); use a multiple of the depth",
        ),
        (
            "chimera",
            Shape(4, 4, {"scale": "tripling"}),
            "scale 'tripling'; known: direct, forward-doubling, backward-halvi",
        ),
        ("chimera_w", Shape(4, 8, {"scale": "forward-doubling"}), "chimera_w takes its microbatches as they are"),
        ("dualpipe", Shape(4, 8, {"pipes": 4}), "dualpipe has 2 pipes (pipes: 4)"),
        ("dualpipe_v", Shape(6, 4, {"chunks": 3}), "folds two stages onto each worker (chunks: 3); use `chunks=2`"),
        ("gems", Shape(4, 4, {"pipes": 4}), "gems has 2 pipes (pipes: 4); leave `pipes=` out"),
        ("gems", Shape(4, 4, {"scale": "forward-doubling"}), "(scale: forward-doubling); use `scale=direct`"),
        ("interleaved", Shape(8, 6, {"chunks": 2}), "(microbatches: 6, workers: 4); use `microbatches=4` or 8"),
        ("interleaved", Shape(8, 8, {"chunks": 3}), "(depth: 8, chunks: 3); use `depth=6` or 9"),
        ("interleaved", Shape(2, 8, {"chunks": 3}), "(depth: 2, chunks: 3); use `depth=3`"),
        ("interleaved", Shape(8, 8, {"pipes": 2, "chunks": 2}), "interleaved has one pipe (pipes: 2)"),
        ("zb_v", Shape(6, 4, {"chunks": 3}), "folds two stages onto each worker (chunks: 3); use `chunks=2`"),
        ("zb_v", Shape(5, 4, {"chunks": 2}), "needs an even depth (depth: 5); use `depth=4` or 6, or"),
        ("zb_v", Shape(6, 4, {"pipes": 2}), "has one pipe (pipes: 2)"),
    ],
)
def test_an_impossible_shape_is_refused_with_the_remedy(name, shape, message):
    with pytest.raises(ScheduleError) as caught:
        find(name).stage_map(shape)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "depth, microbatches, message",
    [
        (10**9, 1, "depth is 1000000000 and can be 65536 at most; use a smaller number"),
        (4, 10**9, "microbatches is 1000000000 and can be 65536 at most; use a smaller number"),
        (
            1025,
            1024,
            r"depth times microbatches is 1049600 \(1025 x 1024\) and can be 1048576 at most; use fewer stages",
        ),
    ],
)
def test_a_shape_that_would_take_all_memory_is_refused(depth, microbatches, message):
    with pytest.raises(ScheduleError, match=message):
        Shape(depth, microbatches)


def test_microbatches_of_gems_take_turns():
    assert find("gems").stage_map(Shape(4, 5)).microbatches == ((0, 2, 4), (1, 3))


@pytest.mark.parametrize(
    "name, knobs, depth",
    [
        ("gpipe", {}, 4),
        ("chimera", {}, 4),
        ("zb_v", {}, 8),
        ("dualpipe_v", {"chunks": 2}, 8),
        ("interleaved", {}, 8),
        ("interleaved", {"chunks": 3}, 12),
        ("interleaved", {"chunks": 1}, 4),
    ],
)
def test_the_default_depth_fills_the_workers(name, knobs, depth):
    found, knobs = default_depth(name, 4, knobs)
    assert found == depth and find(name).stage_map(Shape(depth, 2 * depth, knobs)).workers == 4
