"""Which clusters follow others that end, and what they are to train: no step is left out, and none counts twice.

The steps of a training are dealt by turn (`Clusters.step_of`). When clusters end, the ones that are left have trained
all steps before the last committed round, and some since (`ClusterStop`). What lost clusters trained since is in no
parameters any more: the clusters that follow train those steps first. No torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pipelined.ravnest.planning.backups import HeldPlace, assign_backups
from pipelined.ravnest.planning.places import MAX_STEP
from pipelined.ravnest.planning.pool import PoolNode
from pipelined.ravnest.planning.stage import StageSizes
from pipelined.ravnest.records import BackupPlace, Clusters, ClusterStop, GoingOn, Holder, NodeRecord, StagePlace
from pipelined.state.versions import Version


class Newcomers(NamedTuple):
    """What nodes that waited become in the clusters that follow.

    Args:
        late: the rows of new clusters.
        backups: of places, by the numbers of the clusters that end.
    """

    late: Sequence[list[StagePlace]] = ()
    backups: Sequence[BackupPlace] = ()

    def __bool__(self) -> bool:
        return bool(self.late or self.backups)


NONE = Newcomers()


def new_backups(
    clusters: Clusters, alone: Mapping[tuple[int, int], PoolNode], waiting: Sequence[NodeRecord], sizes: StageSizes
) -> list[BackupPlace]:
    """Backups for places that have none, of nodes that wait; see `assign_backups`.

    The node of a place needs room for a copy of its stage until this is sent. What is left of the backup's RAM, beside
    its stage, is room for the inputs that wait there meanwhile.

    Args:
        alone: by cluster and stage, the node that holds the place alone.
        sizes: bytes of every stage.
    """
    giving, places = StageSizes(sizes.layers, replace(sizes.rules, gives=True)), list[HeldPlace]()
    for (cluster, stage), node in alone.items():
        row, (first, end) = clusters.rows[cluster], clusters.rows[cluster][stage][3:5]
        held = sizes.of_row(row)[stage]
        least = sizes.backed(first, end, max(held, sizes.receiving(first, end)))
        places.append(HeldPlace(node, max(giving.of_row(row)[stage], sizes.backed(first, end, held)), least))
    named, found = {each.name: each for each in waiting}, assign_backups(places, [each.pool_node for each in waiting])
    backups = list[BackupPlace]()
    for index, (cluster, stage) in enumerate(alone):
        if index in found:
            record, place = named[found[index].name], clusters.rows[cluster][stage]
            each = max(1, sizes.waiting(place.first, place.end))
            room = sizes.rules.behind + (record.ram - places[index].backup_bytes) // each
            holder = Holder(record.name, record.address, record.incarnation)
            backups.append(BackupPlace(cluster, stage, holder, min(room, MAX_STEP - 1)))
    return backups


def following(
    clusters: Clusters,
    number: int,
    rounds: int,
    stops: Mapping[int, ClusterStop],
    newcomers: Newcomers = NONE,
) -> Clusters:
    """The clusters that follow others, with what the nodes of these have in memory.

    Args:
        number: theirs.
        rounds: of the clusters before that are committed.
        stops: by number, what each of those that are left had done.
        newcomers: late clusters and new backups. Late ones that are left and have received no committed
            round are late again.
    """
    late = newcomers.late
    heard = [each for each in sorted(stops) if rounds or each < clusters.kept]
    unheard = [each for each in sorted(stops) if each not in heard]
    again, next_ = clusters.going.again, clusters.begun.step + len(clusters.going.again)
    done, apart = stops[heard[0]].done, [stops[each].apart for each in heard]
    missing = {*again[done - clusters.begun.step :]}
    if not rounds:
        missing |= {step for each, steps in enumerate(clusters.going.apart) if each not in heard for step in steps}
    trained = {step for steps in apart for step in steps}
    end = max(next_, done, *(step + 1 for step in trained), 0)
    missing |= {*range(max(next_, done), end)}
    missing -= trained
    going = GoingOn(
        clusters=clusters.number,
        rounds=rounds,
        late=len(unheard) + len(late),
        again=sorted(missing),
        apart=apart if len(heard) > 1 else [[]],  # a cluster alone has what all have
    )
    order = [*heard, *unheard]
    backed = [*clusters.backups, *newcomers.backups]
    backups = [each._replace(cluster=order.index(each.cluster)) for each in backed if each.cluster in order]
    rows = [*(clusters.rows[each] for each in order), *late]
    return Clusters(number, rows, Version(end - len(missing), ""), going, backups)
