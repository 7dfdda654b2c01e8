"""One step of a job on a described machine, simulated on the virtual clock; see docs/simulator.md."""
