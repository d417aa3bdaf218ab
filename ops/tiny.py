"""`verge tiny`: a small Llama with its own tokenizer, pre-trained on demonstrations of a built-in family.

3 layers, width 96, 3 heads of 32 (vLLM's CPU attention has kernels for 32, not for 24), MLP 256: 0.34 M parameters.
One token is one character, and there are 16: the digits, `+ - * = :` and `<end>`. `<end>` is also the padding, so that
no token is invisible in decoded text and every text is exactly one sequence of tokens; whoever pads masks by length.
"""

import copy
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch.nn import functional
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from actors.families.registry import Family, find_family
from ops.exact import exact_pass_at_k, solve_rates
from ops.folders import whole_folder
from store.errors import VergeError

END = "<end>"
RECIPE = "tiny.json"
CONTEXT_TOKENS = 64
HELD_OUT = 256
PASS_AT = (1, 4, 16, 64, 256)
LEARNING_RATE = 1.5e-3
LAST_RATE_SHARE = 0.02
IGNORED = -100

Progress = Callable[[int, int, float], None]
"""Called with (step, steps, loss in nats per token) now and then."""


def build_tiny(
    out: Path,
    family: str = "countdown",
    seed: int = 0,
    steps: int = 1200,
    batch: int = 128,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Pre-train the tiny model of a family into the Hugging Face folder `out`, which appears only when it is complete.

    AdamW at 1.5e-3, falling linearly to 2 % of that; loss over the answer and `<end>`. Many small steps reach
    the same model in less time than fewer large ones. A folder that was built with the same family, seed, steps and
    batch is kept as it is.

    Returns:
        What is in the folder's `tiny.json`: the recipe, `parameters`, `loss` (nats per token), `train_s`, and the exact
        `pass_at` of 256 held-out problems at temperature 1.

    Raises:
        VergeError: the family is unknown, or `out` exists and is something else.
    """
    chosen = find_family(family)
    recipe: dict[str, Any] = {"family": family, "seed": seed, "steps": steps, "batch": batch}
    if built := _already_built(out, recipe):
        return built
    if steps < 1 or batch < 1:
        raise VergeError(f"a tiny model takes at least 1 step of 1 demonstration, not {steps} of {batch}")
    with whole_folder(out) as folder:
        tokenizer = make_tokenizer(chosen.alphabet)
        started = time.monotonic()
        model, loss = _pretrain(chosen, tokenizer, seed, steps, batch, progress)
        report = recipe | {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "loss": loss,
            "train_s": time.monotonic() - started,
        }
        problems = chosen.problems("held_out", HELD_OUT, 0, False)
        rates = solve_rates(model, tokenizer, problems)
        report["pass_at"] = {str(k): float(exact_pass_at_k(rates, k).mean()) for k in PASS_AT}
        transformers_logging.disable_progress_bar()
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / RECIPE).write_text(json.dumps(report, indent=1) + "\n")
    return report


def make_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """One token per character of `alphabet`, then `<end>`; any other character is an error, never dropped."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {character: index for index, character in enumerate([*alphabet, END])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("[\\s\\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=END,
        clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT_TOKENS,
    )


def make_model(vocabulary: int, end_id: int) -> LlamaForCausalLM:
    """The untrained model, float32, from torch's current random state."""
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=3,
            num_key_value_heads=3,
            max_position_embeddings=CONTEXT_TOKENS,
            bos_token_id=None,
            eos_token_id=end_id,
            pad_token_id=end_id,
            tie_word_embeddings=False,
            dtype="float32",
        )
    )
    model.generation_config = GenerationConfig(eos_token_id=end_id, pad_token_id=end_id, do_sample=True)
    return model


def _pretrain(
    family: Family,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    steps: int,
    batch: int,
    progress: Progress | None,
) -> tuple[LlamaForCausalLM, float]:
    rng = np.random.default_rng(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model(len(tokenizer), int(tokenizer.eos_token_id))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - (1 - LAST_RATE_SHARE) * step / steps)
    loss = float("nan")
    with _Halves(model) as halves:
        for step in range(steps):
            optimizer.zero_grad()
            loss = halves.backward(*_batch(family.demonstrations(rng, batch), tokenizer))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if progress and (step % 50 == 49 or step == steps - 1):
                progress(step + 1, steps, loss)
    return model.eval(), loss


class _Halves:
    """Gradients of a batch in two halves, each on its own core.

    A model this small gains nothing from threads inside an operation, and loses much where the cores are shared. The
    second half has a twin of the model with the same parameters and its own gradients, so nothing is copied but those.
    The halves are the same on one core: so is the result.
    """

    def __init__(self, model: LlamaForCausalLM) -> None:
        self._models = (model, copy.deepcopy(model))
        for own, twin in zip(*(each.parameters() for each in self._models), strict=True):
            twin.data = own.data
        cores = min(2, len(os.sched_getaffinity(0)))
        self._threads = ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,))
        self._threads_before = torch.get_num_threads()

    def __enter__(self) -> Self:
        torch.set_num_threads(1)
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()
        torch.set_num_threads(self._threads_before)

    def backward(self, inputs: torch.Tensor, labels: torch.Tensor) -> float:
        """Add the gradient of the mean loss per labelled token, and return that loss in nats."""
        tokens = int((labels != IGNORED).sum())

        def half(model: LlamaForCausalLM, inputs: torch.Tensor, labels: torch.Tensor) -> float:
            logits = model(inputs, use_cache=False).logits.flatten(0, 1)
            loss = functional.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum") / tokens
            loss.backward()
            return loss.item()

        middle = (len(inputs) + 1) // 2
        jobs = [
            self._threads.submit(half, model, inputs[part], labels[part])
            for model, part in zip(self._models, (slice(0, middle), slice(middle, None)), strict=True)
        ]
        loss = sum(job.result() for job in jobs)
        for own, twin in zip(*(each.parameters() for each in self._models), strict=True):
            if own.grad is not None and twin.grad is not None:
                own.grad += twin.grad
                twin.grad = None
        return loss


def _batch(pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and next-token labels [N, T] int64; only answers and their end are labelled."""
    vocabulary = tokenizer.get_vocab()
    end = vocabulary[END]
    width = max(len(prompt) + len(answer) for prompt, answer in pairs)
    inputs = np.full((len(pairs), width), end)
    labels = np.full((len(pairs), width), IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        ids = [vocabulary[character] for character in prompt + answer]
        inputs[row, : len(ids)] = ids
        labels[row, len(prompt) - 1 : len(ids)] = [*ids[len(prompt) :], end]
    return torch.from_numpy(inputs), torch.from_numpy(labels)


def _already_built(out: Path, recipe: dict[str, Any]) -> dict[str, Any] | None:
    """The report of the folder `out` when it was built with this recipe."""
    try:
        report: dict[str, Any] = json.loads((out / RECIPE).read_text())
    except (OSError, ValueError):
        return None
    return report if {key: report.get(key) for key in recipe} == recipe else None
