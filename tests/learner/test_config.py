"""What a refused learner config says: the arithmetic, and what would have gone wrong."""

from typing import Any

import pytest
from pydantic import ValidationError

from learner import config


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("AdmissionConfig", {"samples_per_insert": 2}, r"must be ≤ 1 \(= max_uses\).*would wait for ever"),
        (
            "AdmissionConfig",
            {"samples_per_insert": 3, "max_uses": 3, "max_lag": 1},
            r"must be ≤ 2 \(= max_lag \+ 1\).*would wait for ever",
        ),
        ("AdmissionConfig", {"max_lag": -1}, "greater than or equal to 0"),
        ("AdmissionConfig", {"maxlag": 1}, "Extra inputs"),
        ("GatingConfig", {"k": 256}, r"E\[\(1−p\)\^255\] is 0.00391: every gate would start closed"),
        ("GatingConfig", {"gamma": 0}, "greater than 0"),
        ("LearnerConfig", {"dtype": "bf16"}, "set zero_stage = 1"),
        ("LearnerConfig", {"mini_batches": 5, "groups_per_step": 4}, r"must be ≤ 4 \(= groups_per_step\)"),
        ("LearnerConfig", {"snapshot_format": "delta"}, "no delta would be smaller; set publish_dtype = bf16"),
        ("LearnerConfig", {"betas": (0.9, 1.0)}, r"the second is 1.0 but must be in \[0, 1\)"),
        ("ObjectiveConfig", {"advantage": "fade_bgb"}, "fade_bbg"),
        ("ObjectiveConfig", {"advantage": "kl_control"}, "needs either beta, one for all, or mu"),
        ("ObjectiveConfig", {"reference": "tiny"}, "reference has no effect with advantage = fade_bbg"),
        (
            "ObjectiveConfig",
            {"advantage": "kl_control", "params": {"mu": 0.9}, "reference": "other"},
            "asks how often the reference solves a problem.*leave reference out",
        ),
        ("ObjectiveConfig", {"advantage": "mc_grpo"}, "median"),
        ("ObjectiveConfig", {"params": {"q": 3}}, "has no parameter 'q'"),
        ("ObjectiveConfig", {"normalisation": "token_mean", "constant_tokens": 9.0}, "no effect"),
        ("ObjectiveConfig", {"cov_share": 0.1}, "cov_share has no effect with covariance = off"),
        ("ObjectiveConfig", {"covariance": "kl", "cov_low": 2.0}, "cov_low has no effect with covariance = kl"),
        ("ObjectiveConfig", {"covariance": "clip", "cov_kl": 2.0}, "cov_kl has no effect with covariance = clip"),
        ("ObjectiveConfig", {"covariance": "clip", "cov_low": 6.0}, r"must be < 5 \(= cov_high\)"),
        ("CorrectionConfig", {"m2_threshold": 0.1}, "m2_threshold has no effect with kind = tis"),
        ("CorrectionConfig", {"clip_low": 1.0}, "less than 1"),
        ("CorrectionConfig", {"kind": "vtrace"}, "tis"),
        ("CorrectionConfig", {"trust": False, "clip_low": 0.2}, "clip_low has no effect with trust = false"),
        ("CorrectionConfig", {"trust": False, "dual_clip": 3.0}, "dual_clip has no effect with trust = false"),
        ("CorrectionConfig", {"dual_clip": 1.0}, "greater than 1"),
        ("CorrectionConfig", {"kind": "topr", "cap_positive": 3.0}, "cap_positive has no effect with kind = topr"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_its_reason(
    section: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        getattr(config, section)(**values)


@pytest.mark.parametrize("section", ["ObjectiveConfig", "CorrectionConfig"])
@pytest.mark.parametrize("values", [{"normalisation": "token_mean"}, {"kind": "gspo", "trust": False}])
def test_a_config_written_out_in_full_is_read_back(section: str, values: dict[str, Any]) -> None:
    known = {name: value for name, value in values.items() if name in getattr(config, section).model_fields}
    chosen = getattr(config, section)(**known)
    assert getattr(config, section).model_validate_json(chosen.model_dump_json()) == chosen


def test_the_defaults_are_those_of_the_design() -> None:
    gating, admission, correction = config.GatingConfig(), config.AdmissionConfig(), config.CorrectionConfig()
    assert (gating.gamma, gating.k, gating.tau) == (0.97, 8, 0.01)
    assert (admission.max_lag, admission.max_uses, admission.samples_per_insert) == (4, 1, 1.0)
    assert (correction.cap_positive, correction.cap_negative) == (2.0, 1.0)
    assert (correction.clip_low, correction.clip_high) == (0.1, 0.28)
    assert config.ObjectiveConfig().scale == 0.25


def test_every_field_says_what_it_is() -> None:
    for name in ("Learner", "Objective", "Correction", "Gating", "Draw", "Admission", "Alarms", "Lora"):
        for field, info in getattr(config, f"{name}Config").model_fields.items():
            assert info.description, f"{name}.{field}"
