"""Tensors that are split, repeated or partial over a mesh of ranks; their layouts, and moves between two of them."""

from pipelined.sharding.layout import Layout
from pipelined.sharding.mesh import Mesh
from pipelined.sharding.shards import Shards

__all__ = ["Layout", "Mesh", "Shards"]
