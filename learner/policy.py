"""The model as the learner sees it: packed tokens in, per-token log-probs and entropies out.

Logits exist only at completion positions and only a chunk at a time: what does not fit in `KEPT_ELEMENTS` is recomputed
in backward, so that memory does not grow with tokens × vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from learner.batches import DoubleArray, MicroBatch, Shape
from learner.objective import Tokens
from store.errors import VergeError

Forward = Callable[["DeviceBatch"], tuple[Tensor, Tensor]]
"""A `Policy`, or the engine around one: log-probs and entropies of a batch."""
CHUNK_ELEMENTS = 1 << 24
"""At most this many logits at once (64 MB in float32)."""
KEPT_ELEMENTS = 1 << 27
"""At most this many probabilities of one forward wait for its backward (512 MB in float32); the others are computed
again, which costs a matmul with the head."""


class _ChunkedLogProbs(torch.autograd.Function):
    """log softmax(h Wᵀ / T)[target] and its entropy, by chunks of rows, both with a gradient."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, temperature: float
    ) -> Any:
        dtype = torch.promote_types(weight.dtype, torch.float32)
        logprobs = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        entropy = torch.empty_like(logprobs)
        normaliser = torch.empty_like(logprobs)
        kept, room = [], KEPT_ELEMENTS if ctx.needs_input_grad[0] else 0  # False without a backward
        for rows in _chunks(hidden, weight):
            logits = _logits(hidden[rows], weight, bias, temperature)
            lse = torch.logsumexp(logits, -1)
            logprobs[rows] = logits.gather(-1, target[rows, None]).squeeze(-1) - lse
            probabilities = (logits - lse[:, None]).exp_()
            entropy[rows] = lse - torch.einsum("rv,rv->r", probabilities, logits)
            normaliser[rows] = lse
            if (room := room - probabilities.numel()) >= 0:
                kept.append(probabilities)
        ctx.save_for_backward(hidden, weight, bias, target, normaliser, entropy, *kept)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)  # an entropy that is only reported costs nothing in backward
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, grad: Tensor, grad_entropy: Tensor | None) -> Any:
        hidden, weight, bias, target, normaliser, entropy, *kept = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, *_rest = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if needs_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=grad.dtype) if needs_weight else None
        grad_bias = torch.zeros_like(bias, dtype=grad.dtype) if needs_bias and bias is not None else None
        for chunk, rows in enumerate(_chunks(hidden, weight)):
            scale = grad[rows, None] / ctx.temperature
            if grad_entropy is None and chunk < len(kept):
                grad_logits = kept[chunk] * -scale
            else:
                log_p = _logits(hidden[rows], weight, bias, ctx.temperature).sub_(normaliser[rows, None])
                if grad_entropy is None:
                    grad_logits = log_p.exp_().mul_(-scale)
                else:  # dH / d logits = −p·(log p + H)
                    factor = grad_entropy[rows, None] / ctx.temperature
                    grad_logits = torch.exp(log_p).mul_(-(scale + log_p.add_(entropy[rows, None]).mul_(factor)))
            # d log p(target) / d logits = onehot − p
            grad_logits.scatter_add_(-1, target[rows, None], scale)
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
            low = grad_logits.to(weight.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = low @ weight
            if grad_weight is not None:
                if weight.dtype == grad.dtype:
                    grad_weight.addmm_(low.T, hidden[rows])
                else:
                    grad_weight += low.T @ hidden[rows]
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(weight.dtype),
            None,
            None,
        )


class Policy(nn.Module):
    """A Hugging Face causal LM under `model`, so that state-dict names are `model.<Hugging Face name>`."""

    def __init__(self, model: Any, temperature: float) -> None:
        super().__init__()
        self.model: Any = model
        self.temperature = temperature
        self._flex = model.config._attn_implementation == "flex_attention"
        refuse_unsupported(model)

    def forward(self, batch: "DeviceBatch") -> tuple[Tensor, Tensor]:
        """Log-probs and entropies in nats, float32[N], at the sampling temperature."""
        body = self.model.base_model
        hidden = body(
            input_ids=batch.input_ids,
            attention_mask=batch.block_mask() if self._flex else batch.dense_mask(),
            position_ids=batch.position_ids,
            use_cache=False,
        ).last_hidden_state
        hidden = hidden.reshape(-1, hidden.shape[-1]).index_select(0, batch.source)
        head = self.model.get_output_embeddings()
        log_probs: Any = _ChunkedLogProbs.apply  # untyped in torch
        logprobs, entropy = log_probs(hidden, head.weight, head.bias, batch.target, self.temperature)
        return logprobs, entropy


class DeviceBatch:
    """A micro-batch as tensors on the training device."""

    def __init__(self, batch: MicroBatch, device: torch.device) -> None:
        def tensor(array: Any) -> Tensor:
            return torch.from_numpy(array).to(device)

        self.input_ids = tensor(batch.input_ids)
        self.position_ids = tensor(batch.position_ids)
        self._batch = batch
        self.source = tensor(batch.source)
        self.target = tensor(batch.target)
        self.tokens = Tokens(
            tensor(batch.behaviour),
            tensor(batch.proximal),
            tensor(batch.mark),
            tensor(batch.sample),
            tensor(batch.advantage),
            tensor(batch.weight),
        )

    def dense_mask(self) -> Tensor:
        """Who attends to whom, for sdpa: bool[R, 1, L, L]."""
        return torch.from_numpy(self._batch.mask()).to(self.input_ids.device)[:, None]

    def block_mask(self) -> BlockMask:
        """The same for flex attention, which computes only the blocks in which somebody attends to somebody."""
        rows, length = self.input_ids.shape
        device = self.input_ids.device
        document, branch = (torch.from_numpy(a).to(device) for a in (self._batch.document, self._batch.branch))

        def attends(row: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            same = document[row, query] == document[row, key]
            visible = (branch[row, key] == 0) | (branch[row, query] == branch[row, key])
            return (query >= key) & same & visible

        return create_block_mask(attends, rows, None, length, length, device=str(device))


@torch.no_grad()
def logprobs_of(forward: Forward, batches: Sequence[MicroBatch], device: torch.device) -> list[DoubleArray]:
    """Log-probs of the tokens of micro-batches without gradient, float64[N] each."""
    return [forward(DeviceBatch(batch, device))[0].double().cpu().numpy() for batch in batches]


def shape_of(model: Any) -> Shape:
    """The layout's cost model for a Hugging Face model, from its config (parameters may be partitioned by ZeRO)."""
    config = model.config.get_text_config()
    embeddings = config.vocab_size * config.hidden_size
    total = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    tied = bool(getattr(config, "tie_word_embeddings", False))
    body = max(total - embeddings * (1 if tied else 2), 1)
    return Shape.of(body, config.num_hidden_layers, config.hidden_size)


def refuse_unsupported(model: Any) -> None:
    """Raise VergeError for a head or an attention that the packed forward would compute differently from the model."""
    config = model.config.get_text_config()
    name = type(model).__name__
    for field, neutral in (("final_logit_softcapping", None), ("logit_scale", 1.0), ("logits_scaling", 1.0)):
        value = getattr(config, field, neutral)
        if value not in (None, neutral):
            raise VergeError(f"{name} has {field}={value}, which the learner's chunked head does not apply")
    kinds = set(getattr(config, "layer_types", None) or ()) - {"full_attention"}
    if kinds:
        raise VergeError(f"{name} has {sorted(kinds)} layers; prefix sharing needs full attention in every layer")
    if not isinstance(model.get_output_embeddings(), nn.Linear):
        raise VergeError(f"{name} has no linear output head; the learner needs a causal language model")


def _chunks(hidden: Tensor, weight: Tensor) -> Iterator[slice]:
    rows = max(1, CHUNK_ELEMENTS // weight.shape[0])
    for start in range(0, len(hidden), rows):
        yield slice(start, start + rows)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float) -> Tensor:
    """A fresh tensor of at least float32, which the caller may overwrite."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    logits = logits.to(torch.promote_types(weight.dtype, torch.float32))
    return logits if temperature == 1.0 else logits.div_(temperature)
