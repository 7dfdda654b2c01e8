"""The bytes that a node is planned to hold in its place, for the error that ends it where memory runs out. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelined.ravnest.planning.backups import Place
from pipelined.ravnest.planning.stage_sizes import LayerSize, StageRules, StageSizes
from pipelined.ravnest.records.generation import Generation


@dataclass(frozen=True)
class PlannedPlaces:
    """The bytes of places; they are counted when they are asked for.

    Args:
        layers: of the model, as plans have them.
        rules: how nodes hold their stages, without what follows from the generation.
    """

    layers: Sequence[LayerSize]
    rules: StageRules

    def bytes_of(self, generation: Generation, place: Place, name: str) -> int:
        """The bytes that a node of a place holds at its fullest in this generation.

        Counted are the copies of a round with several clusters, the moments that the first cluster sends to late ones,
        and in a place of two nodes what waits there, and what one of them gives and a new one gets.

        Args:
            place: cluster and stage.
            name: of the node; the place may have a backup.
        """
        cluster, stage = place
        stages, continuation = generation.clusters[cluster], generation.continuation
        sends = cluster == 0 and continuation.late_clusters > 0
        sizes = StageSizes(self.layers, replace(self.rules, rounds=len(generation.clusters) > 1, sends_moments=sends))
        held, layers = sizes.of_stages(stages)[stage], (stages[stage].first, stages[stage].end)
        room = next((each.room for each in generation.backups if each[:2] == place), None)
        if room is None:
            return held
        if not room:
            return sizes.with_backup(*layers, held)
        if name == stages[stage].holder.name:
            giving = StageSizes(self.layers, replace(sizes.rules, gives=True))
            return max(giving.of_stages(stages)[stage], sizes.with_backup(*layers, held))
        return max(held, sizes.receiving(*layers)) + room * sizes.waiting(*layers)
