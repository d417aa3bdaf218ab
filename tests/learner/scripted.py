"""What the learner's tests share: a tiny random Llama, and an actor that samples from it with plain PyTorch."""

import threading
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from learner.batches import TrainCompletion, TrainGroup
from learner.store_thread import StoreThread
from store.snapshots import WEIGHTS_FILE
from store.wire import Completion, Problem, RolloutGroup, Span, Ticket, Verdict

VOCAB = 12
TOKENS = 3


def tiny_llama(folder: Path, tied: bool = False, vocab: int = VOCAB, seed: int = 0) -> Path:
    """Save a random Llama of about 20 thousand parameters as a Hugging Face folder."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=64, max_position_embeddings=64, tie_word_embeddings=tied, attn_implementation="sdpa",
        initializer_range=0.2, eos_token_id=None, bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def random_groups(
    count: int, seed: int = 0, size: int = 4, prompt: int = 5, longest: int = 6, vocab: int = VOCAB
) -> list[TrainGroup]:
    """Groups with random tokens, advantages of both signs, and behaviour log-probs near those of a random model."""
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(count):
        lengths = rng.integers(1, longest + 1, size)
        completions = tuple(
            TrainCompletion(
                rng.integers(0, vocab, n), rng.normal(-2.5, 0.3, n).astype(np.float32), float(rng.choice([-0.5, 1.0]))
            )
            for n in lengths
        )
        prompt_ids = rng.integers(0, vocab, prompt + number % 3)
        weight = float(rng.uniform(0.5, 1.5))
        groups.append(TrainGroup(str(number), prompt_ids, completions, weight, size, int(lengths.sum())))
    return groups


def problems(count: int) -> list[Problem]:
    """Problem i is right when the first token of the answer is the last of its prompt."""
    return [Problem(f"p{i}", " ".join(str((i * k) % VOCAB) for k in (1, 3, 5, 7)), "copy-last") for i in range(count)]


class ScriptedActor(threading.Thread):
    """A live actor in a thread: real tickets, real commits, samples of the newest announced weights.

    The model is built here, and only its weights are read in the thread: `from_pretrained` changes classes for as long
    as it runs, and two at once, the learner's being the other, leave them changed for the rest of the process.
    """

    def __init__(
        self, url: str, run: str, password: str | None, base: Path, group_size: int, name: str = "scripted"
    ) -> None:
        super().__init__(name=name, daemon=True)
        self._model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self._where = (url, run, password)
        self._size = group_size
        self._ended = threading.Event()
        self._rng = torch.Generator().manual_seed(0)
        self.error: BaseException | None = None
        self.versions: list[int] = []

    def stop(self) -> None:
        self._ended.set()
        self.join(30)
        if self.error is not None:
            raise self.error

    def run(self) -> None:
        try:
            with StoreThread(*self._where) as line:
                self._work(line)
        except BaseException as error:
            self.error = error

    def _work(self, line: StoreThread) -> None:
        store, version = line.store, -1
        while not self._ended.is_set() and line.call(store.phase())[0] == "running":
            manifest = line.call(store.wait_manifest(version, 200 if version < 0 else 0))
            if manifest is not None:
                version = manifest.version
                self.versions.append(version)
                weights = load_file(Path(manifest.path) / WEIGHTS_FILE)
                missing, unknown = self._model.load_state_dict(weights, strict=False)
                assert set(missing) <= {"lm_head.weight"}  # a tied head is saved once
                assert not unknown
                line.call(store.beat(self.name, {"version": version}))
            if version < 0:
                continue
            tickets = line.call(store.take(self.name, 4, 50))
            # The newest weights may be newer than those of the tickets' issue; load them first.
            if tickets and line.call(store.manifest()).version > version:
                line.call(store.give_back(self.name, tickets))
                continue
            for ticket in tickets:
                group = self._roll_out(line, ticket, version)
                line.call(store.commit(self.name, group))
            time.sleep(0.001)

    @torch.no_grad()
    def _roll_out(self, line: StoreThread, ticket: Ticket, version: int) -> RolloutGroup:
        found = line.call(line.store.problem(ticket.problem_id))
        prompt = np.array([int(word) for word in str(found[0].prompt).split()], np.int32)
        ids = torch.from_numpy(prompt.astype(np.int64)).repeat(self._size, 1)
        chosen = []
        for _ in range(TOKENS):
            logprobs = self._model(ids).logits[:, -1].log_softmax(-1)
            token = torch.multinomial(logprobs.exp(), 1, generator=self._rng)
            chosen.append(logprobs.gather(-1, token).squeeze(-1).numpy())
            ids = torch.cat([ids, token], 1)
        tokens, logprobs = ids[:, len(prompt) :].numpy().astype(np.int32), np.stack(chosen, 1).astype(np.float32)
        return RolloutGroup(
            ticket.id,
            ticket.problem_id,
            prompt,
            tuple(
                Completion(
                    tokens[i],
                    logprobs[i],
                    (Span(version, 0, TOKENS),),
                    float(tokens[i, 0] == prompt[-1]),
                    Verdict.CORRECT if tokens[i, 0] == prompt[-1] else Verdict.WRONG,
                    "length",
                )
                for i in range(self._size)
            ),
        )
