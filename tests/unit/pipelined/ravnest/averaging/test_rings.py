"""Rings between clusters that cut one model differently: against numpy, and every byte against the closed form."""

import asyncio
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectives import ProblemSize
from collectives.algorithms import ALL_REDUCE
from pipelined.ravnest.averaging.rings import Rings
from pipelined.ravnest.planning.ring_layout import Ring, Share, rings_of
from tests.conformance.worlds import endpoint_world
from transports.local import world

FIGURE = [[Share(0, 0, 60), Share(1, 60, 120)], [Share(2, 0, 30), Share(3, 30, 90), Share(4, 90, 120)]]


def test_a_ring_for_every_slice_that_no_cluster_cuts_further():
    assert rings_of(FIGURE) == [Ring((0, 2), 0, 30), Ring((0, 3), 30, 60), Ring((1, 3), 60, 90), Ring((1, 4), 90, 120)]


def test_clusters_with_equal_cuts_have_one_ring_per_rank():
    clusters = [[Share(2 * c, 0, 7), Share(2 * c + 1, 7, 10)] for c in range(4)]
    assert rings_of(clusters) == [Ring((0, 2, 4, 6), 0, 7), Ring((1, 3, 5, 7), 7, 10)]


@st.composite
def cut_clusters(draw):
    """Clusters that cut 1 to 60 elements anyhow, the parts dealt to ranks anyhow, so that some hold several."""
    length, clusters, first = draw(st.integers(1, 60)), [], 0
    for _ in range(draw(st.integers(1, 4))):
        cuts = sorted({0, length, *draw(st.lists(st.integers(1, length), max_size=4))})
        parts = list(pairwise(cuts))
        owners = [first + draw(st.integers(0, 2)) for _ in parts]
        names = {owner: first + place for place, owner in enumerate(dict.fromkeys(owners))}
        clusters.append([Share(names[owner], *part) for owner, part in zip(owners, parts, strict=True)])
        first += len(names)
    return length, first, clusters


def averaged(length, ranks, clusters, op):
    """The models of all clusters before and after, and the ranks' ends."""
    models = [np.random.default_rng(c).standard_normal(length) for c in range(len(clusters))]
    before, ends = np.array(models), world(ranks)

    async def rank(end):
        number = next(c for c, cluster in enumerate(clusters) if any(share.rank == end.rank for share in cluster))
        rings = Rings(end, clusters, 10)
        await rings.all_reduce([models[number][low:high] for low, high in rings.shares], op)

    async def main():
        await asyncio.wait_for(asyncio.gather(*map(rank, ends)), 20)

    asyncio.run(main())
    return before, models, ends


@settings(max_examples=200, deadline=None)
@given(cut_clusters(), st.sampled_from(["mean", "sum", "max"]))
def test_every_cluster_ends_with_the_same_model_and_sends_what_its_rings_do(cut, op):
    length, ranks, clusters = cut
    before, models, ends = averaged(length, ranks, clusters, op)
    np.testing.assert_allclose(models[0], getattr(before, op)(axis=0), rtol=1e-12, atol=1e-12)
    assert len({model.tobytes() for model in models}) == 1
    expected = [Counter() for _ in range(ranks)]
    for ring in rings_of(clusters):
        for place, rank in enumerate(ring.ranks):
            problem = ProblemSize.on_one_node(len(ring.ranks), (ring.high - ring.low) * 8, 8)
            sent = ALL_REDUCE.forms("ring").bytes_to(problem, place)
            expected[rank].update({ring.ranks[peer]: nbytes for peer, nbytes in sent.items()})
    assert [end.traffic.bytes_to for end in ends] == expected


@pytest.mark.parametrize("count", [2, 3, 4])
def test_of_each_slice_a_rank_sends_exactly_twice_all_but_a_clusters_part(count):
    cuts = [(0, 120, 240), (0, 60, 180, 240), (0, 240), (0, 12, 24, 240)]
    clusters, first = [], 0
    for line in cuts[:count]:
        clusters.append([Share(first + i, *part) for i, part in enumerate(pairwise(line))])
        first += len(line) - 1
    _, _, ends = averaged(240, first, clusters, "sum")
    for share in (share for cluster in clusters for share in cluster):
        assert ends[share.rank].traffic.bytes_sent == 2 * (count - 1) * (share.high - share.low) * 8 // count


@pytest.mark.parametrize(
    ("clusters", "says"),
    [
        ([], "no clusters"),
        ([[Share(0, 0, 5), Share(1, 6, 9)]], r"rank 1 holds \[6, 9\), expected from 5 on"),
        ([[Share(0, 0, 5), Share(1, 4, 9)]], r"rank 1 holds \[4, 9\), expected from 5 on"),
        ([[Share(0, 0, 0)]], r"rank 0 holds \[0, 0\)"),
        ([[Share(0, 0, 5)], [Share(1, 0, 6)]], r"different lengths \(elements: \[5, 6\]\)"),
        ([[Share(0, 0, 5)], [Share(0, 0, 5)]], r"more than one cluster \(ranks: \[0\]\)"),
    ],
)
def test_impossible_clusters_are_refused(clusters, says):
    with pytest.raises(ValueError, match=says):
        rings_of(clusters)


@pytest.mark.parametrize("rank", range(5))
def test_too_few_channels_for_all_rings_are_refused_by_every_rank(rank):
    with pytest.raises(ValueError, match="rings: 4, first channel: 16381, channels: 16384"):
        Rings(world(5)[rank], FIGURE, 16381)


def test_arrays_that_are_not_the_ranks_shares_are_refused():
    rings = Rings(world(5)[0], FIGURE, 0)
    with pytest.raises(ValueError, match=r"elements: \[61\], shares: \[60\]"):
        asyncio.run(rings.all_reduce([np.ones(61)]))


@pytest.mark.virtual
async def test_rings_between_uneven_clusters_send_their_bytes_over_endpoints():
    """1,200 elements cut at 600, and at 300 and 900: four rings, and a node sends its bytes once."""
    clusters = [
        [Share(0, 0, 600), Share(1, 600, 1200)],
        [Share(2, 0, 300), Share(3, 300, 900), Share(4, 900, 1200)],
    ]
    ends = await endpoint_world(5)
    arrays = [np.arange(s.low, s.high, dtype=np.float64) * (1 + c) for c, row in enumerate(clusters) for s in row]
    await asyncio.gather(
        *(Rings(end, clusters, 0).all_reduce([array]) for end, array in zip(ends, arrays, strict=True))
    )
    for share, array in zip([share for row in clusters for share in row], arrays, strict=True):
        assert (array == 1.5 * np.arange(share.low, share.high)).all()
    assert [end.traffic.bytes_sent for end in ends] == [8 * n for n in (600, 600, 300, 600, 300)]
