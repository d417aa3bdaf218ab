"""What must be true before a run may start: its model, its problems and its store agree."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from actors.problems import ProblemSet, load_problems
from actors.prompts import encode_prompts
from actors.verifiers import Verifiers
from ops.config import RunConfig, fingerprint, fingerprint_fields
from ops.models import resolve_model
from store.client import Store
from store.errors import VergeError
from store.snapshots import WEIGHTS_FILE
from store.wire import Problem


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run's model folder and problems, checked against each other, and the folder of its reference model, if any."""

    model: Path
    problems: ProblemSet
    reference: Path | None = None


def prepare(config: RunConfig) -> Prepared:
    """Resolve the models, load the problems, and check that every prompt fits and every verifier is there.

    Raises:
        VergeError: the first thing that a person must change.
    """
    model, named = resolve_model(config.model.path), config.objective.reference
    reference = None if named is None else resolve_model(named, "objective.reference")
    problems = load_problems(config.problems)
    if config.evaluation.every and not len(problems.held_out):
        raise VergeError(
            f"evaluation.every is {config.evaluation.every}, but {config.problems.source} holds out no problem to"
            " measure with: set problems.held_out_count, or evaluation.every to 0"
        )
    check_fit(config, model, chain(problems.train, problems.held_out))
    return Prepared(model, problems, reference)


def check_fit(config: RunConfig, model: Path, problems: Iterable[Problem]) -> None:
    """Check that every prompt fits and every verifier is there.

    Raises:
        VergeError: the first thing that a person must change.
    """
    tokenizer = load_tokenizer(model)
    context, completion = config.actor.context_tokens, config.sampling.max_completion_tokens
    longest = 0

    def fitting() -> Iterator[Problem]:
        nonlocal longest
        for problem in problems:
            if config.objective.overlong_cache and problem.max_completion_tokens is not None:
                raise VergeError(
                    f"problem {problem.id} has a max_completion_tokens of its own, but objective.overlong_cache"
                    " punishes length by sampling.max_completion_tokens: remove one of the two"
                )
            longest = max(longest, *map(len, encode_prompts([problem], tokenizer, context, completion).values()))
            yield problem

    with_verifiers = Verifiers(config.verifier)
    try:
        with_verifiers.check(fitting())
    finally:
        with_verifiers.close()
    limit = position_limit(model)
    if limit is not None and context > limit:
        raise VergeError(
            f"actor.context_tokens is {context}, but the model has {limit} positions; set it to at most {limit} "
            f"(the longest prompt has {longest} tokens, and completions up to {completion})"
        )


async def enter_store(store: Store, config: RunConfig, prepared: Prepared) -> None:
    """Create the run in the store, or check that the run that is there is this one, and add its problems.

    Those held out are added only where actors evaluate on them while the run trains. A new run's base model is
    announced as version 0 at once, so that actors load it while the learner starts.
    """
    await store.open_run(
        {
            "fingerprint": fingerprint(config),
            "gamma": repr(config.gating.gamma),
            "group_size": str(config.sampling.group_size),
            **{f"config:{name}": value for name, value in fingerprint_fields(config).items()},
        }
    )
    await store.set_limits(config.store.max_groups, config.store.max_payload_mib << 20)
    await store.add_problems(prepared.problems.train)
    if config.evaluation.every:
        await store.add_held_out(prepared.problems.held_out)
    if await store.manifest() is None:
        from learner.publish import manifest_of

        if not (prepared.model / WEIGHTS_FILE).is_file():
            return  # a model in several files: the learner publishes it in one
        await store.announce(manifest_of(0, prepared.model, 0))


def load_tokenizer(model: Path) -> Any:
    """The tokenizer of a model's folder.

    Raises:
        VergeError: transformers cannot load it.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise VergeError(f"model {model} has no tokenizer that transformers can load: {_first_line(error)}") from None


def position_limit(model: Path) -> int | None:
    """Tokens that a model has positions for; None where it does not say.

    Raises:
        VergeError: transformers cannot load the model's config.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise VergeError(f"model {model} cannot be loaded by transformers: {_first_line(error)}") from None
    limit = getattr(config, "max_position_embeddings", None)
    return int(limit) if limit is not None else None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
