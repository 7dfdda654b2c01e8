"""Requests between members of a directory: their fields and limits, their roles and versions, why one is rejected.

Only a swarm sends such requests. Roles and reasons stand here and not in `pipelined.swarm.protocol`, because
`pipelined.state`, which may not import the swarm, has such requests too.
"""
