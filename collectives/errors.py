"""All errors of collectives beside those of transports."""


class Mismatch(ValueError):
    """The ranks of a group called one collective with different arguments, or different collectives.

    Args:
        peer: the other rank.
    """

    def __init__(self, fact: str, peer: int):
        super().__init__(fact)
        self.peer = peer

    @classmethod
    def between(cls, rank: int, signature: object, peer: int, peer_signature: object) -> "Mismatch":
        """The error that names both signatures."""
        fact = f"ranks call one collective differently (rank {rank}: {signature}; rank {peer}: {peer_signature})"
        return cls(f"{fact}; give all ranks of the group equal arguments", peer)

    @classmethod
    def apart(cls, rank: int, call: str, peer: int, peer_call: str) -> "Mismatch":
        """The error that names two calls of different numbers."""
        fact = f"ranks wait for one another in different calls (rank {rank}: {call}; rank {peer}: {peer_call})"
        return cls(f"{fact}; call the group's collectives equally often and in one order on all of its ranks", peer)


class Unsupported(ValueError):
    """The group's transport cannot run this call. All ranks refuse it alike, so the group stays usable."""


class BrokenGroup(RuntimeError):
    """An earlier collective on this group failed or was cancelled, and may have left bytes on its channel."""
