"""Which clusters follow others that end, and what they are to train: no step is left out, and none counts twice.

The steps of a training are dealt by turn (`Clusters.step_of`). When clusters end, the ones that are left have trained
all steps before the last committed round, and some since (`ClusterStop`). What lost clusters trained since is in no
parameters any more: the clusters that follow train those steps first. No torch.
"""

from collections.abc import Mapping, Sequence

from pipelined.ravnest.records import Clusters, ClusterStop, GoingOn, StagePlace
from pipelined.state.versions import Version


def following(
    clusters: Clusters,
    number: int,
    rounds: int,
    stops: Mapping[int, ClusterStop],
    late: Sequence[list[StagePlace]] = (),
) -> Clusters:
    """The clusters that follow others, with what the nodes of these have in memory.

    Args:
        number: theirs.
        rounds: of the clusters before that are committed.
        stops: by number, what each of those that are left had done.
        late: the rows of new clusters. Late ones that are left and heard no round are late again.
    """
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
    backups = [each._replace(cluster=order.index(each.cluster)) for each in clusters.backups if each.cluster in order]
    rows = [*(clusters.rows[each] for each in order), *late]
    return Clusters(number, rows, Version(end - len(missing), ""), going, backups)
