"""Messages over MPI: loading the library, the progress engine, and memory that ranks of one node share.

opening       loads the library and initialises it within a time limit; opens `mpi://`
transport     one rank of a world, made of:
frames        headers with short bodies; `received` keeps what no receive has taken
bodies        long bodies, held at their sender until they are fetched
channels      bare buffers
node          doorbells and arenas of the node's ranks; `shared`: windows of a group, and its barriers
native        MPI's own collectives; `all_gather`: what a group exchanges before it has them
progress      polls all requests; `requests` starts and tests one, `backoff` says how long to nap between polls
shutdown      the end of a rank: what it still receives for its peers, and what its peers still hold for it
"""
