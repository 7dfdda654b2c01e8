"""Memory that processes of one machine share: segments, arenas, doorbells, barriers. Knows no MPI."""
