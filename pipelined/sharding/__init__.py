"""Tensors that are split, repeated or partial over a mesh of ranks; their layouts, and moves between two of them."""

from pipelined.sharding.groups import MeshGroups
from pipelined.sharding.layout import Layout
from pipelined.sharding.mesh import Mesh
from pipelined.sharding.path import Path, path, path_between
from pipelined.sharding.shards import Shards
from pipelined.sharding.walk import LinkWalk

__all__ = ["Layout", "LinkWalk", "Mesh", "MeshGroups", "Path", "Shards", "path", "path_between"]
