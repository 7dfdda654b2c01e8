"""What a user can put right by themselves: told in one message, from one rank, with exit code 2."""


class UsageError(ValueError):
    """Input that cannot work: the message gives the fact, the numbers and the remedy, and needs no traceback."""
