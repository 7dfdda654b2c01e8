"""A look at a swarm as a person reads it: a line of where it stands, a table of peers, a line a trainer."""

import math

from rich.console import Group
from rich.table import Table
from rich.text import Text

from apps._swarm_look import Look

COLUMNS = ("stage", "peer", "phase", "step", "counted", "waiting", "forwards", "backwards", "share", "sent MiB")


def table(look: Look) -> Group:
    """Everything of one look."""
    peers = Table(*COLUMNS, box=None, pad_edge=False)
    for peer in sorted(look["peers"], key=lambda peer: (peer["stage"], peer["name"])):
        peers.add_row(*_row(peer), style="dim" if peer["silent"] else "")
    return Group(Text(_where(look), style="bold"), peers, *[Text(_trainer(each)) for each in look["trainers"]])


def _where(look: Look) -> str:
    waits = f"; waits for {look['waits_for']}" if look["waits_for"] else ""
    if look["step"] is None:
        return f"no step yet{waits}"
    loss = f", loss {look['loss']:.4f}, norm {look['norm']:.3f}" if look["step"] else ""
    return f"step {look['step']}{loss}, led by {look['conductor'] or 'nobody'}{waits}"


def _row(peer: Look) -> list[str]:
    share = "" if math.isnan(peer["share"]) else f"{100 * peer['share']:.0f} %"
    phase = "silent" if peer["silent"] else "cut off" if peer.get("cut_off") else peer["phase"]
    numbers = [str(peer.get(name, "")) for name in ("step", "counted", "waiting", "forwards", "backwards")]
    return [str(peer["stage"]), peer["name"], phase, *numbers, share, f"{peer.get('sent', 0) / 2**20:.1f}"]


def _trainer(trainer: Look) -> str:
    if trainer["silent"]:
        return f"trainer {trainer['name']}: silent"
    leads = ", leads" if trainer["leads"] else ""
    banned = ", ".join(f"{address} for {left:g} s" for address, left in trainer["banned"].items())
    return f"trainer {trainer['name']}: {trainer['done']} microbatches{leads}{f', bans {banned}' if banned else ''}"
