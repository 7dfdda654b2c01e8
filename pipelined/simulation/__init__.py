"""One step of a job on a described machine, simulated on the virtual clock; see docs/simulator.md."""

from pipelined.simulation.machine import Machine
from pipelined.simulation.simulator import Simulated, simulate
from pipelined.simulation.workload import Parameters, StageCosts, Workload

__all__ = ["Machine", "Parameters", "Simulated", "StageCosts", "Workload", "simulate"]
