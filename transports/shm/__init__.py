"""Things that processes of one machine share: segments, arenas, doorbells, barriers, cores. No MPI."""
