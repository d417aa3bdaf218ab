"""The [problems], [sampling], [verifier] and [actor] sections of the config."""

from typing import Literal, Self

from pydantic import Field, model_validator

from store.section import Section

Update = Literal["keep", "drain", "restart"]

GENERATED = ("builtin:", "reasoning_gym:")
"""What a source begins with that makes its problems."""


class ColumnsConfig(Section):
    """Which column of a dataset holds what. With any of them set, columns that are not named here are ignored."""

    id: str | None = None
    """Text or integer, unique. None: the column `id`, or where there is none the row's number."""

    prompt: str | None = None
    """Text. None: the column `prompt`, if there is one and no column of messages is named."""

    messages: str | None = None
    """A chat: a list of {role, content}. None: the column `messages`, if there is one and no column of prompts is
    named."""

    answer: str | None = None
    """What the verifier needs. None: the column `answer`, if there is one."""

    verifier: str | None = None
    """The verifier's name. None: the column `verifier`, or where there is none `problems.verifier`."""

    tags: str | None = None
    """A text or a list of texts. None: the column `tags`, if there is one."""

    max_completion_tokens: str | None = None
    """The problem's own limit, in place of `sampling.max_completion_tokens`. None: the column of that name, if any."""

    time_limit_s: str | None = None
    """The problem's own limit, in place of `verifier.time_limit_s`. None: the column of that name, if there is one."""

    reference: str | None = None
    """A completion that is correct, which `verge problems check` tries. None: the column `reference`, if there is
    one."""


class ProblemsConfig(Section):
    """Which problems are trained on, and which are held out to measure with."""

    source: str = "builtin:countdown"
    """`builtin:countdown`, `builtin:arithmetic`, `reasoning_gym:<dataset>`, a JSONL or Parquet file (id, prompt or
    messages, verifier, answer, tags, max_completion_tokens, time_limit_s, reference), a folder of such files as the
    hub's datasets are, or the id of one (owner/name)."""

    columns: ColumnsConfig = ColumnsConfig()
    """The columns of a file that was not made for Verge."""

    verifier: str | None = None
    """The verifier of the problems that name none."""

    split: str = "train"
    """Of a folder whose files are named after splits, the split to read."""

    train_count: int | None = Field(None, ge=1)
    """Problems to train on. None: 512 that are generated, all that are left of a file."""

    held_out_count: int | None = Field(None, ge=0)
    """Problems that are never trained on. None: 256 that are generated, `held_out_share` of a file."""

    held_out_share: float = Field(0.1, ge=0, lt=1)
    """Share of a file that is held out when `held_out_count` is absent."""

    tags: tuple[str, ...] = ()
    """Only problems that have all of these tags, as in `["level-1"]`."""

    seed: int = Field(0, ge=0)
    """Seed of the split. Train and held-out problems of one seed never meet; another seed shuffles anew."""

    form: Literal["auto", "plain", "chat"] = "auto"
    """How generated problems are put: `plain` text, as for a tiny model, or `chat` messages for a model with a chat
    template. `auto`: countdown plain, all others chat."""

    @model_validator(mode="after")
    def _form_of_a_file(self) -> Self:
        if self.form != "auto" and not self.source.startswith(GENERATED):
            raise ValueError(
                f"form is {self.form!r}, but only generated problems have a choice: in a file, `prompt` is plain text "
                "and `messages` is a chat; remove form"
            )
        return self


class SamplingConfig(Section):
    """How completions are drawn from the policy."""

    group_size: int = Field(8, ge=2)
    """G, completions of one rollout group."""

    temperature: float = Field(1.0, gt=0)
    """Temperature at which actors sample and the learner evaluates its log-probs."""

    max_completion_tokens: int = Field(64, ge=1)
    """Tokens of a completion, its end token included. A completion that reaches this without ending is truncated."""


class ActorConfig(Section):
    """How many actors there are on this machine, and what each gives its engine."""

    count: int = Field(1, ge=0)
    """Actors that `verge up` starts; 0 when they run elsewhere."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Dtype of the engine's weights; `auto` takes the snapshot's own."""

    context_tokens: int = Field(2048, ge=2)
    """Longest prompt and completion together, in tokens; at most the model's positions."""

    max_sequences: int = Field(256, ge=1)
    """Completions that the engine generates at once, if its memory for keys and values holds so many. Tickets are taken
    to keep it as full as it can be, by vLLM's own counts of running and waiting, and a quarter more to queue: up to as
    many again where completions are too short for that."""

    tensor_parallel: int = Field(1, ge=1)
    """GPUs of one engine."""

    gpu_memory_share: float = Field(0.85, gt=0, le=1)
    """Share of a GPU's memory that the engine may take."""

    cpu_kv_cache_gib: int = Field(1, ge=1)
    """GiB of keys and values of an engine on CPU."""

    cpu_cores: str | None = Field(None, coerce_numbers_to_str=True)
    """Cores of an engine on CPU, as in `0-3` or `0,2`, counted among those that the actor may use; by default vLLM
    chooses."""

    niceness: int = Field(0, ge=0, le=19)
    """How far an actor stands back from others on its cores, on a CPU the learner. At 10 it has a tenth where both
    compute, and all that is left. (A learner whose threads share cores evenly waits for the thread that shares.)"""

    update: Update = "keep"
    """What becomes of completions that are in flight when new weights come. `keep` goes on with them under the new
    weights; `drain` finishes them first, and the engine idles until the longest has ended; `restart` drops them and
    samples them again, which wastes what they were and leaves the version mix biased to short completions."""

    drain_grace_s: float = Field(15.0, gt=0)
    """Seconds in which an actor that is asked to stop finishes its groups; the rest of its tickets it gives back."""

    max_error_share: float = Field(0.2, gt=0, le=1)
    """Share of completions that may end in an `error` before the actor stops and says why."""

    @model_validator(mode="after")
    def _cores(self) -> Self:
        if self.cpu_cores is not None:
            core_numbers(self.cpu_cores)
            if self.tensor_parallel > 1:
                raise ValueError("cpu_cores places an engine of one process: remove it, or set tensor_parallel = 1")
        return self


def core_numbers(text: str) -> tuple[int, ...]:
    """The cores that `0-3` or `0,2` names, ascending; ValueError for any other text."""
    cores: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not (first.isdecimal() and (last.isdecimal() if dash else True) and int(last or first) >= int(first)):
            raise ValueError(f"cpu_cores is {text!r}, but must name cores, as in `0-3` or `0,2`")
        cores.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(cores))


class VerifierConfig(Section):
    """Limits on verification, and what becomes of a completion that was cut off."""

    workers: int = Field(2, ge=1)
    """Processes that run the verifiers `math`, `code`, `reasoning_gym:…` and `python:…`. The others take microseconds
    and run in the actor."""

    time_limit_s: float = Field(5.0, gt=0)
    """Wall-clock seconds for one check, of `code` for all its tests together. A longer one is killed and its completion
    gets `timeout`, reward 0."""

    import_limit_s: float = Field(60.0, gt=0)
    """Wall-clock seconds for a worker to start and import the verifiers of the run."""

    memory_limit_mib: int = Field(1024, ge=16)
    """Address space that a worker may take beyond what its imports needed. Beyond it, the check ends in `error`."""

    sandbox: Literal["bubblewrap", "none"] = "bubblewrap"
    """Where `code` runs the policy's programs: in bubblewrap without network, files and other processes; or, for models
    that you trust, with nothing but limits on time, memory and output."""

    verify_truncated: bool = False
    """Verify a completion that reached its token limit without ending, instead of giving it `truncated`, reward 0."""
