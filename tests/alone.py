"""Which tests run beside no other, where a run has several workers."""

ALONE = (
    "tests/chaos/test_failing_ranks.py",
    "tests/chaos/test_interrupted.py",
    "tests/chaos/test_struck_swarm.py",
    "tests/launch/test_doctor.py",
    "tests/launch/test_launchers.py",
    "tests/launch/test_signals.py",
    "tests/slurm/",
    "tests/swarm/test_local_swarm.py",
    "tests/swarm/test_real_directories.py",
    "tests/swarm/test_equal_names.py",
    "tests/unit/pipelined/directory/test_wrong_key.py",
    "tests/unit/pipelined/measurement/",
    "tests/unit/pipelined/process/",
    "tests/unit/transports/tcp/test_cut_links.py",
    "tests/unit/transports/tcp/test_processes.py",
)
"""Files of which the tests kill, stop or time real processes, or look at what all processes of this machine hold: on
a busy core their limits of seconds would not be true. The ranks' own tests under mpirun are not of them: eight ranks
make two cores busier than any neighbour does, so that their limits have room.
"""


def runs_alone(name):
    """Whether the test, or the file, of this name runs beside no other."""
    return name.startswith(ALONE)
