"""No two groups of ranks that may send at a time share a channel."""

from pipelined.programs.updates.channels import Channels

BUCKETS, DEPTH = ((0,), (0, 2), (1,), (2,)), 3
HOLDERS = (((0, 1), (0, 1)), ((0,), (1,)))


def test_each_use_has_a_channel_of_its_own_and_none_is_left_out():
    channels = Channels(BUCKETS, DEPTH, HOLDERS)
    assert channels.buckets == BUCKETS
    assert [
        channels.world,
        *map(channels.bucket_sum, BUCKETS),
        *map(channels.stage_moves, range(DEPTH)),
        *map(channels.team_sum, BUCKETS),
        *(channels.share_sum(stages, copies) for stages in BUCKETS for copies in HOLDERS),
    ] == list(range(1 + 4 + 3 + 4 + 8))
