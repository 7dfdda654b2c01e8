"""The place of a node: a stage of a cluster, as plans, records and orders name it."""

from typing import NamedTuple


class ClusterPlace(NamedTuple):
    """One stage of one cluster, by their numbers; a node holds it, and perhaps a backup, too."""

    cluster: int
    stage: int
