"""Whether a peer and a channel can exist at all. The one rule: a wrong one is named with its range."""

CHANNELS = 16384


def check_peer(peer: int, world_size: int) -> None:
    """Raise ValueError unless `peer` is a rank of this world."""
    if not 0 <= peer < world_size:
        raise ValueError(f"no such rank (peer: {peer}, world size: {world_size}); ranks run from 0 to world size - 1")


def check_channel(channel: int) -> None:
    """Raise ValueError unless `channel` is one that every transport can carry."""
    if not 0 <= channel < CHANNELS:
        raise ValueError(f"no such channel (channel: {channel}, channels: {CHANNELS}); they run from 0 up")
