"""One TOML file describes a run. This module composes the rooms' sections, loads, overrides and fingerprints them."""

import difflib
import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, Field, ValidationError, model_validator

from actors.config import ActorConfig, EvaluationConfig, ProblemsConfig, SamplingConfig, VerifierConfig
from gating import advantages
from learner.config import (
    AdmissionConfig,
    AlarmsConfig,
    CorrectionConfig,
    DrawConfig,
    GatingConfig,
    LearnerConfig,
    ObjectiveConfig,
)
from ops.monitor.config import MetricsConfig, TrackConfig
from ops.placement import PlacementConfig
from ops.serve.config import ServeConfig
from store.config import StoreConfig
from store.errors import VergeError
from store.section import Section


class ModelConfig(Section):
    """The model that is trained."""

    path: str
    """A Hugging Face folder, a hub id, `tiny` (built on first use) or `smollm2` (converted on first use)."""


class RunConfig(Section):
    """Everything about one run: `verge config schema` prints it as a JSON schema."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$")
    """The run's name: the prefix of its keys in the store and, by default, its folder under `runs/`."""
    folder: Path | None = None
    """Where logs, weights, checkpoints and the embedded store live; `runs/<name>` when absent."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seeds the order of tickets, drawing, initialisation and the engines. The problems' split has its own."""
    model: ModelConfig
    problems: ProblemsConfig
    sampling: SamplingConfig = SamplingConfig()
    verifier: VerifierConfig = VerifierConfig()
    store: StoreConfig = StoreConfig()
    actor: ActorConfig = ActorConfig()
    learner: LearnerConfig = LearnerConfig()
    objective: ObjectiveConfig = ObjectiveConfig()
    correction: CorrectionConfig = CorrectionConfig()
    gating: GatingConfig = GatingConfig()
    draw: DrawConfig = DrawConfig()
    admission: AdmissionConfig = AdmissionConfig()
    alarms: AlarmsConfig = AlarmsConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    serve: ServeConfig = ServeConfig()
    metrics: MetricsConfig = MetricsConfig()
    placement: PlacementConfig | None = None
    """Which GPUs each process of `verge up` gets; absent, all see them all."""
    track: TrackConfig = TrackConfig()

    @model_validator(mode="after")
    def _groups_teach(self) -> Self:
        name, size = self.objective.advantage, self.sampling.group_size
        least = int(getattr(advantages.make(name, **self.objective.params), "min_group", 1))
        if size < least:
            raise ValueError(
                f"sampling.group_size is {size}, but {name} says nothing about groups of fewer than {least}: "
                f"raise it to at least {least}"
            )
        return self

    @model_validator(mode="after")
    def _penalty_fits(self) -> Self:
        cache, limit = self.objective.overlong_cache, self.sampling.max_completion_tokens
        if cache > limit:
            raise ValueError(
                f"objective.overlong_cache is {cache} but must be ≤ {limit} (= sampling.max_completion_tokens): the "
                "penalty would begin before the first token; lower it"
            )
        return self

    @model_validator(mode="after")
    def _pool_holds_a_batch(self) -> Self:
        least = self.learner.checkpoint_every * self.learner.groups_per_step
        if self.store.max_groups < least:
            raise ValueError(
                f"store.max_groups is {self.store.max_groups} but must be ≥ {least} (= learner.checkpoint_every · "
                "learner.groups_per_step): groups that were trained on stay until a checkpoint, and the pool would be "
                "full before it holds the last batch before one"
            )
        return self

    @model_validator(mode="after")
    def _ports_are_enough(self) -> Self:
        if self.metrics.actor_port and self.actor.count > 1:
            raise ValueError(
                f"metrics.actor_port is {self.metrics.actor_port}, but {self.actor.count} actors (= actor.count) of one"
                " machine cannot share it; set 0, for a free one each"
            )
        return self

    @model_validator(mode="after")
    def _placement_fits(self) -> Self:
        if self.placement is not None:
            reason = self.placement.why_unfit(
                self.actor.count, self.actor.tensor_parallel, self.learner.groups_per_step
            )
            if reason is not None:
                raise ValueError(reason)
        return self

    @property
    def run_folder(self) -> Path:
        """The run's folder."""
        return self.folder if self.folder is not None else Path("runs") / self.name


# What may differ when a run is resumed: how long, how fast and where it runs, not what it learns from what.
RESUMABLE = {
    "folder": None,
    "store": None,
    "actor": None,
    "evaluation": None,
    "serve": None,
    "metrics": None,
    "placement": None,
    "track": None,
    "alarms": None,
    "learner": {
        "steps",
        "threads",
        "checkpoint_every",
        "keep_checkpoints",
        "keep_snapshots",
        "geometry_every",
        "snapshot_format",
        "full_snapshot_every",
        "micro_batch_tokens",
    },
}


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's TOML file and apply `section.field=value` overrides (value: TOML, else a plain string).

    Raises:
        VergeError: one line that names the file, the field, and what to change.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise VergeError(f"{path}: no such file; name a run's TOML file, for example ops/configs/demo.toml") from None
    except (IsADirectoryError, PermissionError, UnicodeDecodeError) as error:
        raise VergeError(f"{path}: cannot be read as a TOML file: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise VergeError(f"{path}: not valid TOML: {error}") from None
    return override_config(data, overrides, str(path))


def override_config(data: dict[str, Any], overrides: Sequence[str], source: str) -> RunConfig:
    """Apply `section.field=value` overrides to a run's settings, in place, and validate them.

    Raises:
        VergeError: as `load_config`.
    """
    for override in overrides:
        _apply_override(data, override)
    return parse_config(data, source)


def parse_config(data: Mapping[str, Any], source: str) -> RunConfig:
    """Validate a run's settings.

    Raises:
        VergeError: as `load_config`.
    """
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        raise VergeError(f"{source}: " + "; ".join(_explain(fault) for fault in error.errors())) from None


def fingerprint_fields(config: RunConfig) -> dict[str, str]:
    """The fields that decide what a run learns, flat, as `section.field` → JSON: they may not change on resume."""
    fields: dict[str, str] = {}
    for section, value in config.model_dump(mode="json").items():
        free = RESUMABLE.get(section, set())
        if free is None:
            continue
        if not isinstance(value, dict):
            fields[section] = json.dumps(value)
            continue
        fields.update({f"{section}.{key}": json.dumps(item) for key, item in value.items() if key not in free})
    return fields


def fingerprint(config: RunConfig) -> str:
    """SHA-256 over `fingerprint_fields`."""
    return hashlib.sha256(json.dumps(fingerprint_fields(config), sort_keys=True).encode()).hexdigest()


def _apply_override(data: dict[str, Any], override: str) -> None:
    name, separator, text = override.partition("=")
    keys = name.strip().split(".")
    if not separator or not all(keys):
        raise VergeError(f"--set {override!r}: write section.field=value, for example --set learner.lr=2e-5")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    for key in keys[:-1]:
        data = data.setdefault(key, {})
        if not isinstance(data, dict):
            raise VergeError(f"--set {override!r}: {key} is a value, not a section")
    data[keys[-1]] = value


def _explain(fault: Any) -> str:
    location = [str(part) for part in fault["loc"]]
    name = ".".join(location)
    if fault["type"] == "extra_forbidden":
        known = _known_keys(location[:-1])
        near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        return f"unknown key {name}" + (
            f"; did you mean {'.'.join([*location[:-1], near[0]])}?" if near else f"; known: {', '.join(known)}"
        )
    if fault["type"] == "missing":
        return f"{name} is missing"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{name}: {message}" if name else message
    return f"{name} is {fault['input']!r}: {message[:1].lower()}{message[1:]}"


def _known_keys(location: Sequence[str]) -> list[str]:
    section: type[BaseModel] = RunConfig
    for part in location:
        annotation = section.model_fields[part].annotation if part in section.model_fields else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return []
        section = annotation
    return list(section.model_fields)
