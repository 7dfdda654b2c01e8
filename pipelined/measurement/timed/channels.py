"""The bare-buffer channels of the measurements, which run one after another. No torch."""

SILENT_CHANNEL = 0  # of a member that is timed alone
SUMS_CHANNEL = 1  # of sums and other collectives; in a trial each bucket has its own, from here on
MOVES_CHANNEL = 2  # of a team, through memory
