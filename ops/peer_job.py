"""GRPO by TRL's GRPOTrainer: the program that `verge bench loop` runs in the peer's own environment.

It imports nothing of ours. Its one argument is a job file (`ops.peer.job`). On stdout it says one JSON object a line:
`{"do": "ready"}`, `{"do": "judge", …}`, which is answered on stdin by `{"rewards": […]}`, one line, so that rewards
come from our own verifiers, and `{"do": "step", …}` after each step.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
say = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # what libraries print is for the log


def tell(**fields: Any) -> None:
    say.write(json.dumps({**fields, "at_s": time.time()}) + "\n")
    say.flush()


class Clock(TrainerCallback):
    """Seconds of each step and of its parts: generation, and training (forward, backward, optimiser)."""

    def __init__(self) -> None:
        self.generation_s = self.training_s = 0.0
        self.rewards: list[float] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.perf_counter()
        self.generation_s = self.training_s = 0.0

    def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.stepping = time.perf_counter()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self.training_s += time.perf_counter() - self.stepping

    def on_step_end(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        step_s = time.perf_counter() - self.began
        parts = {"generation_s": self.generation_s, "training_s": self.training_s}
        tell(do="step", step=state.global_step, rewards=self.rewards, step_s=step_s, **parts)


clock = Clock()


class Timed(GRPOTrainer):
    """The trainer as it is, with a clock around its parts."""

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return super()._generate_single_turn(*args, **kwargs)
        finally:
            clock.generation_s += time.perf_counter() - began

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return super()._generate_and_score_completions(*args, **kwargs)
        finally:
            clock.training_s -= time.perf_counter() - began  # within `training_step`, which is timed whole

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return super().training_step(*args, **kwargs)
        finally:
            clock.training_s += time.perf_counter() - began


def judged(problem: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Rewards from the other side: it has the verifiers."""
    tell(do="judge", problems=problem, completions=completion_ids)
    clock.rewards = json.loads(sys.stdin.readline())["rewards"]
    return clock.rewards


torch.set_num_threads(job["threads"])
torch.manual_seed(job["seed"])
model = AutoModelForCausalLM.from_pretrained(job["model"], dtype=torch.float32)
tokenizer = AutoTokenizer.from_pretrained(job["model"], padding_side="left")
optimiser = torch.optim.AdamW(
    model.parameters(), lr=job["lr"], betas=tuple(job["betas"]), weight_decay=job["weight_decay"], fused=True
)
warm = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / (job["warmup_steps"] + 1)))
completions = job["groups_per_step"] * job["group_size"]
trainer = Timed(
    model=model,
    reward_funcs=judged,
    args=GRPOConfig(
        output_dir=job["folder"],
        use_cpu=True,
        bf16=job["bf16"],
        max_steps=job["steps"],
        per_device_train_batch_size=job["micro_batch"],
        gradient_accumulation_steps=completions // job["micro_batch"],
        num_generations=job["group_size"],
        max_completion_length=job["max_completion_tokens"],
        temperature=job["temperature"],
        max_grad_norm=job["grad_clip"],
        gradient_checkpointing=False,
        shuffle_dataset=False,
        seed=job["seed"],
        save_strategy="no",
        report_to="none",
        logging_strategy="no",
        disable_tqdm=True,
    ),
    train_dataset=Dataset.from_list(job["problems"]),
    processing_class=tokenizer,
    optimizers=(optimiser, warm),
    callbacks=[clock],
)
tell(do="ready")
trainer.train()
