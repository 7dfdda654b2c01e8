"""Export of a whole model: `python -m apps.swarm export`, and `train` at its end with --export and --sample.

An export takes no part in training. It reads what was saved, or fetches the state of each stage as a joining peer does.
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from apps.lm.data.text import Text, read_text
from apps.lm.models.gpt2 import GPT2
from apps.lm.models.gpt2_presets import ModelConfig
from apps.lm.models.rotary import RotaryLM
from apps.lm.models.rotary_presets import RotaryConfig
from apps.swarm.config import SwarmTask
from apps.swarm.flags import Export
from apps.swarm.training import Session, session_of
from apps.swarm.weights import Weights, check_destination
from pipelined.aio.clock import RealClock
from pipelined.aio.progress import reported_wait
from pipelined.api.data.tokens.tokenizer import Tokenizer
from pipelined.directory import CutOff, Directory, LeaseLost
from pipelined.errors import UsageError
from pipelined.membership.joining import connected, read_task
from pipelined.membership.node import Node
from pipelined.state.store import load_whole
from pipelined.swarm.process.session import snapshot
from transports.rpc import Endpoint

Say = Callable[[str], None]


@dataclass(frozen=True)
class FinalOutput:
    """What to write and to sample at the end.

    Args:
        to: directory to write; None: none.
        sample: tokens to sample; 0: none.
        prompt: the beginning of the sample.
        context: tokens that the model sees for each new one.
        seed: of the sample.
    """

    to: Path | None
    sample: int
    prompt: str
    context: int
    seed: int

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return self.to is None and not self.sample

    def check(self, model: GPT2) -> None:
        """Refuse early what would fail at the end. Raises UsageError."""
        if self.to is not None:
            check_destination("--export", self.to, model)

    async def write(self, weights: Weights, tokenizer: Tokenizer, say: Say) -> None:
        """Write and sample, as requested."""
        if self.to is not None:
            await asyncio.to_thread(weights.export, self.to, tokenizer)
            say(f"exported to {self.to}")
        if self.sample:
            request = tokenizer, self.prompt, self.sample, self.context, self.seed
            say("sample:\n" + await asyncio.to_thread(weights.sample, *request))


async def export(flags: Export, say: Say) -> None:
    """Export saved stages, or the state of a running swarm.

    Raises:
        UsageError: there is no model, its tokenizer differs, or the directory to write holds something else.
    """
    text = await asyncio.to_thread(read_text, flags.text.data, flags.text.tokenizer)
    if flags.checkpoint:
        whole = await asyncio.to_thread(load_whole, flags.checkpoint)
        weights = Weights(model_of(whole.identity), whole.values)
        weights.model.config.check_vocabulary(text.tokenizer.vocab_size)
        if flags.to is not None:
            check_destination("--to", flags.to, weights.model)
        say(f"step {whole.at.step}, as all {whole.at.stages} stages saved it")
        await say_digest(weights, whole.at.step, say)
    else:
        weights = await _fetch_running(flags, text, say)
    context = flags.context or weights.model.config.positions
    await FinalOutput(flags.to, flags.sample, flags.prompt, context, flags.seed).write(weights, text.tokenizer, say)


async def _fetch_running(flags: Export, text: Text, say: Say) -> Weights:
    """Fetch the model of a running swarm. Raises UsageError: its text or tokenizer differs."""
    url = flags.directory or flags.coordinator
    async with connected(url, flags.listen) as (endpoint, directory):
        trained = SwarmTask.unpack(await read_task(directory, url, say))
        if trained.text != text.digest:
            fact = f"this swarm learns from another text (here: {text.digest[:16]}, there: {trained.text[:16]})"
            raise UsageError(f"{fact}; give the --data and --tokenizer that its trainers were given")
        session = await asyncio.to_thread(session_of, trained)
        if flags.to is not None:
            check_destination("--to", flags.to, session.model)
        return await fetch("export", session, endpoint, directory, say)


async def fetch(name: str, session: Session, endpoint: Endpoint, directory: Directory, say: Say) -> Weights:
    """Fetch the parameters of every stage; waits while a stage has no peer.

    Args:
        name: of this process.
    Raises:
        UsageError: the directory does not reply.
    Cost: as `SwarmObserver.snapshot`.
    """
    node = Node(f"{name}-{secrets.token_hex(4)}", endpoint, directory, RealClock())
    try:
        async with reported_wait(f"the state of every stage (stages: {session.rules.stages})", say):
            stages = await snapshot(node, session)
    except (LeaseLost, CutOff) as error:
        raise UsageError(f"the directory does not reply ({error}); start it again, and repeat this command") from error
    step = stages[0][0].step
    say(f"step {step}, as it stands at {len(stages)} stages")
    weights = Weights.of_stages(session.model, [state for _, state in stages])
    await say_digest(weights, step, say)
    return weights


async def say_digest(weights: Weights, step: int, say: Say) -> None:
    """Print the digest of all parameters, in the words of a pipeline's `--digest`."""
    say(f"digest of all parameters after step {step}: {await asyncio.to_thread(weights.digest)}")


def model_of(identity: Mapping[str, Any]) -> GPT2:
    """The model of a checkpoint.

    Raises:
        UsageError: this release does not know it.
    """
    kinds: dict[Any, tuple[type[ModelConfig], type[GPT2]]] = {
        "gpt2": (ModelConfig, GPT2),
        "rotary": (RotaryConfig, RotaryLM),
    }
    if identity.get("model") not in kinds:
        raise UsageError(f"a checkpoint of an unknown model ({identity.get('model')}); known are {', '.join(kinds)}")
    sizes, kind = kinds[identity["model"]]
    values = {field.name: identity[field.name] for field in fields(sizes) if field.name in identity}
    if "narrow" in values:
        values["narrow"] = tuple(values["narrow"])
    return kind(sizes(**values))
