"""Training that survives its machines (Ryabinin et al., SWARM parallelism). Importing this imports no torch."""
