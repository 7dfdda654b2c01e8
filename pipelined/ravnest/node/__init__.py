"""A node: how it joins, trains its stage in a cluster, alone or with a backup, and writes what its cluster has done."""
