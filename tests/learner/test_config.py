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
        ("LearnerConfig", {"snapshot_format": "delta"}, "no delta would be smaller; set publish_dtype = bf16"),
        ("LearnerConfig", {"betas": (0.9, 1.0)}, r"the second is 1.0 but must be in \[0, 1\)"),
        ("ObjectiveConfig", {"advantage": "fade_bgb"}, "fade_bbg"),
        ("ObjectiveConfig", {"advantage": "unlikely"}, "log-prob"),
        ("ObjectiveConfig", {"advantage": "mc_grpo"}, "median"),
        ("ObjectiveConfig", {"params": {"q": 3}}, "has no parameter 'q'"),
        ("ObjectiveConfig", {"normalisation": "token_mean", "constant_tokens": 9.0}, "no effect"),
        ("CorrectionConfig", {"clip_low": 1.0}, "less than 1"),
        ("CorrectionConfig", {"kind": "vtrace"}, "tis"),
    ],
)
def test_a_config_that_cannot_work_is_refused_with_its_reason(
    section: str, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        getattr(config, section)(**values)


def test_the_defaults_are_those_of_the_design() -> None:
    gating, admission, correction = config.GatingConfig(), config.AdmissionConfig(), config.CorrectionConfig()
    assert (gating.gamma, gating.k, gating.tau) == (0.97, 8, 0.01)
    assert (admission.max_lag, admission.max_uses, admission.samples_per_insert) == (4, 1, 1.0)
    assert (correction.cap_positive, correction.cap_negative) == (2.0, 1.0)
    assert (correction.clip_low, correction.clip_high) == (0.1, 0.28)
    assert config.ObjectiveConfig().scale == 0.25


def test_every_field_says_what_it_is() -> None:
    for name in ("Learner", "Objective", "Correction", "Gating", "Draw", "Admission"):
        for field, info in getattr(config, f"{name}Config").model_fields.items():
            assert info.description, f"{name}.{field}"
