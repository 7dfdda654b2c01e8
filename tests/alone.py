"""Which tests run beside no other, where a run has several workers."""

ALONE = (
    "tests/unit/pipelined/measurement/",
    "tests/unit/pipelined/process/",
    "tests/unit/transports/tcp/test_cut_links.py",
)
"""Files of which the tests measure time, or hold a program to limits of a few seconds: on a busy core those would not
be true. Jobs of several processes are not of them: they make two cores busier than any neighbour does, so their limits
have room.
"""


def runs_alone(name):
    """Whether the test, or the file, of this name runs beside no other."""
    return name.startswith(ALONE)
