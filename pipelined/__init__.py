"""The public face of the runtime: `import pipelined as pp`. A name that needs torch imports it at its first use."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pipelined.process.job_end import end_job_if_uncaught

if TYPE_CHECKING:
    from pipelined import swarm
    from pipelined.api.data.feed import Feed
    from pipelined.api.laboratory.proof import Proof, prove
    from pipelined.api.laboratory.simulation import Simulation, draw, simulate
    from pipelined.api.plan import plan
    from pipelined.api.planning.planned import Planned
    from pipelined.api.train import train
    from pipelined.api.trainer import AsyncTrainer, Trainer
    from pipelined.api.whole_run import Trained
    from pipelined.errors import JobFailed, UsageError
    from pipelined.programs.plan import Plan
    from pipelined.random.keyed_random import layer_seed
    from pipelined.schedules import Knob, Shape, StageMap, Updates, Worker
    from pipelined.traces.drawing.picture import Picture
    from pipelined.training.models.attention import SelfAttention
    from pipelined.training.models.layer_builders import LayerBuilder, initial_seed, recomputed, tied
    from pipelined.training.models.sequential import Sequential
    from pipelined.training.models.split.user_layer import Layouts
    from pipelined.training.models.traced_model import trace
    from pipelined.training.segments.step_report import StepReport

__version__ = "0.1.0"
__all__ = [
    "AsyncTrainer",
    "Feed",
    "JobFailed",
    "Knob",
    "LayerBuilder",
    "Layouts",
    "Picture",
    "Plan",
    "Planned",
    "Proof",
    "SelfAttention",
    "Sequential",
    "Shape",
    "Simulation",
    "StageMap",
    "StepReport",
    "Trained",
    "Trainer",
    "Updates",
    "UsageError",
    "Worker",
    "__version__",
    "draw",
    "initial_seed",
    "layer_seed",
    "plan",
    "prove",
    "recomputed",
    "simulate",
    "swarm",
    "tied",
    "trace",
    "train",
]

_NAMES = {
    "pipelined.api.data.feed": "Feed",
    "pipelined.api.planning.planned": "Planned",
    "pipelined.api.plan": "plan",
    "pipelined.api.laboratory.proof": "Proof prove",
    "pipelined.api.laboratory.simulation": "Simulation draw simulate",
    "pipelined.api.train": "train",
    "pipelined.api.trainer": "AsyncTrainer Trainer",
    "pipelined.api.whole_run": "Trained",
    "pipelined.errors": "JobFailed UsageError",
    "pipelined.programs.plan": "Plan",
    "pipelined.random.keyed_random": "layer_seed",
    "pipelined.schedules": "Knob Shape StageMap Updates Worker",
    "pipelined.swarm": "swarm",
    "pipelined.traces.drawing.picture": "Picture",
    "pipelined.training.models.attention": "SelfAttention",
    "pipelined.training.models.layer_builders": "LayerBuilder initial_seed recomputed tied",
    "pipelined.training.models.sequential": "Sequential",
    "pipelined.training.models.split.user_layer": "Layouts",
    "pipelined.training.models.traced_model": "trace",
    "pipelined.training.segments.step_report": "StepReport",
}
"""The public names by their modules. A new one comes here, into `__all__`, and into the imports for type checkers."""
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

end_job_if_uncaught(os.environ)
"""At the import, not in `train`: a rank may fail before it trains, as it reads its data, while the others wait."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    home = import_module(_HOMES[name])
    value = globals()[name] = home if home.__name__ == f"{__name__}.{name}" else getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
