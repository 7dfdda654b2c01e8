"""The bytes that a node is planned to hold in its place, for the error that ends it where memory runs out. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipelined.ravnest.cluster_place import ClusterPlace
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

    def bytes_of(self, generation: Generation, place: ClusterPlace, name: str) -> int:
        """The bytes that a node of a place holds at its fullest in this generation.

        Counted are the copies of a round with several clusters, the moments that the first cluster sends to late ones,
        and in a place of two nodes what waits there, and what one of them gives and a new one gets.

        Args:
            name: of the node; the place may have a backup.
        """
        stages = generation.clusters[place.cluster]
        held_place = generation.stage_place(place)
        layers = (held_place.first, held_place.end)
        sends_moments = place.cluster == 0 and generation.continuation.late_clusters > 0
        sizes = StageSizes(
            self.layers, replace(self.rules, rounds=len(generation.clusters) > 1, sends_moments=sends_moments)
        )
        stage_bytes = sizes.of_stages(stages)[place.stage]
        backup = generation.backup_at(place)
        if backup is None:
            return stage_bytes
        if backup.room == 0:  # both nodes had the stage from the first step
            return sizes.with_backup(*layers, stage_bytes)
        if name == held_place.holder.name:  # it gives the stage to its new backup
            giving_sizes = StageSizes(self.layers, replace(sizes.rules, gives=True))
            return max(giving_sizes.of_stages(stages)[place.stage], sizes.with_backup(*layers, stage_bytes))
        return max(stage_bytes, sizes.receiving(*layers)) + backup.room * sizes.waiting(*layers)
