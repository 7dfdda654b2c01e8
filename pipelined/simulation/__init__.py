"""One step of a whole job on a priced machine, on the virtual clock; see docs/simulator.md."""
