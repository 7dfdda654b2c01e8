"""Memory that processes of one machine share: segments, arenas, doorbells, barriers. No MPI."""
