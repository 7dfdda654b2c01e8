"""The channels of the groups of ranks in a training job. No torch.

Groups that send at the same time need a channel each, and all ranks must give a group the same one. So the uses stand
in one list, which follows from the names of the buckets and the stages alone; a channel is an index in it.
"""

from collections.abc import Hashable, Iterable

from pipelined.programs.updates.bucket_names import Stages


class Channels:
    """The channel of every group of a job.

    Args:
        buckets: the stages of every bucket of the job, in order.
        depth: stages.
        copies: for the members of a team, every way in which several of them hold the same piece of a parameter.
    """

    def __init__(self, buckets: Iterable[Stages], depth: int, copies: Iterable[Hashable]):
        self.buckets, copies = tuple(buckets), tuple(copies)
        uses: list[Hashable] = ["world"]
        uses += [("bucket", stages) for stages in self.buckets]
        uses += [("moves", stage) for stage in range(depth)]
        uses += [("team", stages) for stages in self.buckets]
        uses += [("share", stages, copy) for stages in self.buckets for copy in copies]
        self._numbers = {use: channel for channel, use in enumerate(uses)}

    @property
    def world(self) -> int:
        """Sums over all ranks."""
        return self._numbers["world"]

    def bucket_sum(self, stages: Stages) -> int:
        """The sum of a bucket's gradient over its holders."""
        return self._numbers["bucket", stages]

    def stage_moves(self, stage: int) -> int:
        """Moves of tensors within a team, in the computations of a stage."""
        return self._numbers["moves", stage]

    def team_sum(self, stages: Stages) -> int:
        """The sum of a bucket's gradient within a team, over the members that hold the same pieces."""
        return self._numbers["team", stages]

    def share_sum(self, stages: Stages, copies: Hashable) -> int:
        """The sum and the gather of one share of a bucket; see `pipelined.training.sums.update_shards`."""
        return self._numbers["share", stages, copies]
