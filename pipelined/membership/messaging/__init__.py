"""Requests between members of a directory: their fields and limits, their roles and versions, why one is rejected.

Only a swarm sends such requests. All their roles and reasons stand here, not in `pipelined.swarm.protocol`: those for a
stage's state, in `pipelined.state` below the swarm, have them too.
"""
