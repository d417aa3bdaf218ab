"""What Verge is for: a boundary method on stale rollouts widens the model, and without the trust region destroys it."""

from ops.labs.staleness import run


def test_the_trust_region_is_what_keeps_stale_failures_from_collapsing_the_model() -> None:
    rises, collapses = run(lag=4, steps=40, seed=0)["checks"]
    assert rises["ok"], rises
    assert collapses["ok"], collapses
