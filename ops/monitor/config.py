"""The [metrics] and [track] sections of the config."""

from typing import Literal

from pydantic import Field

from store.section import Section


class MetricsConfig(Section):
    """A Prometheus endpoint in every actor and every rank of the learner, besides the run's own of `verge serve`."""

    host: str = "127.0.0.1"
    """Address to listen on. Whoever can reach it may read: figures and names of models, no text of a problem. Off
    loopback, keep it within a network that is yours."""
    actor_port: int | None = Field(None, ge=0, le=65535)
    """TCP port of an actor's endpoint; 0: any free one, which `metrics/` in the run folder names. None: no endpoint,
    and an engine that does not spend time on vLLM's own metrics."""
    learner_port: int | None = Field(None, ge=0, le=65535)
    """TCP port of the endpoint of a node's first rank of the learner, the next rank has the next one; 0: any free ones.
    None: no endpoint."""


class TrackConfig(Section):
    """An experiment tracker that is told the figures of every step. It never stops the run: what goes wrong is said."""

    kind: Literal["none", "tensorboard", "wandb"] = "none"
    """`tensorboard` writes event files to `track/` in the run folder; `wandb` logs to Weights & Biases, which reads its
    own variables (WANDB_API_KEY, WANDB_MODE=offline …) from the environment."""
    project: str = Field("verge", min_length=1)
    """Project of `wandb`; the run has the name of this run."""
