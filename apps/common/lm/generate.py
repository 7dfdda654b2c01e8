"""`generate`: continue prompts by a trained model, in a pipeline over the ranks that were started.

The model is a Hugging Face directory of a GPT-2, Llama or Qwen, or a checkpoint of a GPT-2. Every rank reads the layers
of its stage, so a model that fits no rank generates, too. Torch is imported after every check that does not need it.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from apps.common.flags.groups import parse_words
from apps.common.flags.paths import GPT2_TYPE, ROTARY_TYPE, read_config_json
from apps.common.lm.data.text import digest_of
from apps.common.lm.models.llama_presets import KINDS
from apps.common.run.program import run_program
from pipelined.api.data.tokens.tokenizer import Tokenizer, find_tokenizer
from pipelined.errors import UsageError, printable, refuse_below
from pipelined.process.launch import Launch
from pipelined.process.reporting.events import Level
from pipelined.process.run import run
from pipelined.state.checkpoints.checkpoint import open_checkpoint
from transports import Transport


@dataclass(frozen=True)
class Generate:
    """Continue prompts by a trained model, in a pipeline over the ranks that were started."""

    source: Annotated[Path, tyro.conf.arg(name="from")]
    """A Hugging Face directory of a GPT-2, Llama, SmolLM, Qwen2 or Qwen3; the export of a swarm; or a checkpoint of a
    GPT-2, or a directory of checkpoints."""
    prompt: tuple[str, ...] = ("ROMEO",)
    """Text to continue; several are continued in one batch, each as it would be alone."""
    tokens: int = 200
    """Tokens to add to each prompt."""
    temperature: float = 0.8
    """What the logits are divided by; 0 always takes the likeliest token."""
    top_k: int = 40
    """Draw among this number of the likeliest tokens; 0: among all."""
    top_p: float = 1.0
    """Draw from the smallest set of most likely tokens whose probabilities sum to at least this."""
    seed: int = 0
    """Seed of the draws."""
    tokenizer: str | None = None
    """bytes, gpt2, a tokenizer.json, or a directory with one. Default: that of the directory or of the run."""
    depth: Annotated[int | None, tyro.conf.arg(aliases=("--stages",))] = None
    """Stages of the pipeline (D), on T ranks each; without a launcher all in this process. Default: the ranks / T."""
    tensor: int = 1
    """Ranks of a stage (T), which split its tensors; of a GPT-2 alone."""
    share_devices: bool = False
    """Let ranks share a GPU where a machine has fewer GPUs than ranks."""
    transport: str = "auto"
    """auto (by launcher), mpi, tcp, local, or a URL such as `tcp://10.0.0.1:29500?wait=60`."""
    log: Level = "warning"
    """Print events from this level up to stderr, one per line: debug, info, warning or error."""

    def check(self) -> None:
        """Raises UsageError: a value that cannot be."""
        refuse_below(0, "--tokens", self.tokens)
        refuse_below(0, "--temperature", self.temperature)
        refuse_below(0, "--top-k", self.top_k)
        refuse_below(1, "--tensor", self.tensor)
        if self.depth is not None:
            refuse_below(1, "--depth", self.depth)
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p must be above 0 and at most 1 (it is {self.top_p:g}); 1 draws among all")
        if not all(self.prompt or [""]):
            raise UsageError("a prompt needs at least one character (--prompt is empty)")

    @property
    def is_exported(self) -> bool:
        """Whether the source is a Hugging Face directory, not a checkpoint."""
        return (self.source / "config.json").is_file()

    def find_tokenizer(self) -> Tokenizer:
        """The tokenizer of the model.

        Raises:
            UsageError: it has no tokenizer, or another one than the checkpoint's run had.
        """
        if self.is_exported:
            return find_tokenizer(self.tokenizer or str(self.source), ())
        config = open_checkpoint(self.source).meta.config
        name = self.tokenizer or config.get("tokenizer") or config.get("init") or "bytes"
        if str(name).startswith("bpe:"):
            fact = f"the tokenizer of {self.source} was trained in its run ({name})"
            raise UsageError(f"{fact}; add --tokenizer with its file, or generate from what --export wrote")
        tokenizer = find_tokenizer(str(name), ())
        saved_text = config.get("text")
        saved_digest = saved_text.get("tokenizer") if isinstance(saved_text, dict) else None
        if saved_digest not in (None, digest_of(tokenizer)):
            raise UsageError(f"{self.source} was trained with another tokenizer than {name}; name it by --tokenizer")
        return tokenizer

    def kind(self) -> str:
        """The architecture. Raises UsageError: it does not generate."""
        if not self.is_exported:
            identity: Any = open_checkpoint(self.source).meta.identity
            kind = identity.get("model", "a row of layers")
        else:
            kind = read_config_json(self.source).get("model_type", "none given")
        exports = (GPT2_TYPE, *KINDS, ROTARY_TYPE)
        if kind not in exports:
            fact = f"{self.source} is of a program that cannot generate ({kind})"
            raise UsageError(f"{fact}; give a checkpoint of a GPT-2, or an export of {', '.join(exports)}")
        if self.tensor > 1 and kind != GPT2_TYPE:
            raise UsageError(
                f"only a GPT-2 is split by --tensor ({self.source} is of another kind: {kind}); leave it out"
            )
        return str(kind)

    def stages(self, ranks: int | None) -> int:
        """The stages on a number of ranks; None: without a launcher. Raises UsageError: they do not fit."""
        depth = self.depth or (ranks or self.tensor) // self.tensor
        if ranks not in (None, depth * self.tensor):
            fact = f"each stage has its ranks (--depth {depth}, --tensor {self.tensor}, ranks: {ranks})"
            raise UsageError(f"{fact}; start depth times tensor ranks, or leave --depth out")
        return depth

    def encode(self, tokenizer: Tokenizer, vocab: int) -> list[list[int]]:
        """The tokens of the prompts. Raises UsageError: the model has not all of them, or a prompt has none."""
        prompts = [tokenizer.encode(prompt).tolist() for prompt in self.prompt]
        if not all(prompts):
            raise UsageError(f"the prompt {self.prompt[prompts.index([])]!r} has no tokens; give a longer one")
        largest = max(map(max, prompts))
        if largest >= vocab:
            fact = "the prompt has tokens that the model has not"
            symbols = f"vocabulary of the model: {vocab}, of the tokenizer: {tokenizer.vocab_size}"
            raise UsageError(f"{fact} (token {largest}, {symbols}); give --tokenizer the model's own")
        return prompts


def main(program: str, arguments: list[str]) -> int:
    """Run `generate`; returns the exit code (0 done, 1 failure, 2 usage, 130 interrupted)."""

    name = f"python -m {program} generate"

    def parse() -> Generate:
        flags, _ = parse_words(Generate, arguments, name)
        flags.check()
        return flags

    return run_program(name, parse, partial(_run, program=name))


def _run(flags: Generate, launch: Launch, program: str) -> int:
    kind = flags.kind()
    tokenizer = flags.find_tokenizer()
    depth = flags.stages(launch.world_size)
    from apps.common.lm.generation import SOURCES, generate, read_gpt2_checkpoint
    from apps.common.lm.sampling import Picker

    source = (SOURCES[kind] if flags.is_exported else read_gpt2_checkpoint)(flags.source)
    if depth > source.model.layers:
        fact = f"more stages than layers (stages: {depth}, layers: {source.model.layers})"
        raise UsageError(f"{fact}; start fewer ranks, or lower --depth")

    prompts = flags.encode(tokenizer, source.vocab)
    tensor = flags.tensor
    pick = Picker(flags.seed, flags.temperature, flags.top_k, flags.top_p)

    async def rank(transport: Transport) -> int:
        sequences = await generate(
            transport, launch, source, tensor=tensor, prompts=prompts, count=flags.tokens, pick=pick
        )
        if not transport.rank:
            print("\n---\n".join(printable(tokenizer.decode(tokens)) for tokens in sequences), flush=True)
        return 0

    return run(launch, depth * tensor, rank, lambda number: [number // tensor], program)
