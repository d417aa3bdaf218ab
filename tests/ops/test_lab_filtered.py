"""The toy autoregressive experiment: exact gradients, and what they lead to."""

import numpy as np

from ops import lab_filtered
from ops.lab_filtered import Bigram


def test_the_gradient_is_exact():
    model, rng = Bigram(), np.random.default_rng(0)
    logits = rng.normal(size=model.shape)
    weights = rng.normal(size=4096)
    exact = model.gradient(logits, weights)
    np.testing.assert_allclose(np.exp(model.log_probs(logits)).sum(), 1.0, rtol=1e-12)
    for cell in [(0, 0, 2), (1, 3, 1), (5, 2, 0)]:
        step = np.zeros(model.shape)
        step[cell] = 1e-6
        numeric = (model.log_probs(logits + step) - model.log_probs(logits - step)) @ weights / 2e-6
        np.testing.assert_allclose(exact[cell], numeric, rtol=1e-6, atol=1e-6)


def test_kl_control_collapses_where_a_direct_fit_does_not(tmp_path):
    result = lab_filtered.run(tmp_path / "lab.png")
    assert all(row["ok"] for row in result["checks"]), result["checks"]
    assert (tmp_path / "lab.png").stat().st_size > 10_000
    kept = [row["effective_right"] for row in result["fits"]]
    assert max(kept) == kept[0]  # the forward KL covers most
    assert result["kl_control"][-1]["effective_right"] < kept[0] < result["ideal"]["effective_right"]
    assert len({tuple(row) for row in result["table"]}) == 1
    assert len(result["table"]) == 2 + len(result["kl_control"]) + len(result["fits"])
    assert any("jumps from" in line for line in result["conclusions"])
