"""The chunked head: what it keeps for its backward, and what it computes again, are the same gradient."""

import pytest
import torch

import learner.policy
from learner.policy import _ChunkedLogProbs


@pytest.mark.parametrize("kept", [0, 70, 10_000], ids=["nothing kept", "the first chunk kept", "all kept"])
@pytest.mark.parametrize("biased", [False, True])
def test_log_probs_entropies_and_gradients_are_those_of_log_softmax(
    kept: int, biased: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner.policy, "CHUNK_ELEMENTS", 60)  # 4 rows of 15
    monkeypatch.setattr(learner.policy, "KEPT_ELEMENTS", kept)
    generator = torch.Generator().manual_seed(0)
    leaves = [torch.randn(*size, generator=generator, dtype=torch.float64) for size in ((11, 6), (15, 6), (15,))]
    target, out = torch.randint(0, 15, (11,), generator=generator), torch.randn(11, generator=generator).double()
    found, wanted = [], []
    for results, chunked in ((found, True), (wanted, False)):
        hidden, weight, bias = (leaf.clone().requires_grad_() for leaf in leaves)
        if chunked:
            logprobs, entropy = _ChunkedLogProbs.apply(hidden, weight, bias if biased else None, target, 0.7)
        else:
            whole = (torch.nn.functional.linear(hidden, weight, bias if biased else None) / 0.7).log_softmax(-1)
            logprobs, entropy = whole.gather(-1, target[:, None]).squeeze(-1), -(whole.exp() * whole).sum(-1)
        (logprobs * out).sum().backward()
        results += [logprobs, entropy, hidden.grad, weight.grad, *([bias.grad] if biased else [])]
    assert all(torch.allclose(one, two, atol=1e-12) for one, two in zip(found, wanted, strict=True))
