"""α, δ and their moving averages (FADE; DESIGN §5)."""

import numpy as np
import pytest

from gating import fade


def test_alpha_matches_the_paper_at_three_solve_rates():
    np.testing.assert_allclose(fade.alpha([0.0, 0.2, 0.4, 0.7, 1.0]), [3.0, 3.0, 2.25, 1.0, 1.0], rtol=1e-15)


def test_delta_matches_the_paper_around_the_target():
    np.testing.assert_allclose(fade.delta([2.0, 1.5, 0.0, 3.0], 2.0), [1.0, 0.5, 0.3, 1.0], rtol=1e-15)


def test_relative_delta_is_the_share_of_the_target_that_is_left():
    np.testing.assert_allclose(fade.delta([0.39, 0.2, 0.01], 0.4, mode="relative"), [0.975, 0.5, 0.3], rtol=1e-15)


def test_the_floor_of_delta_rises_with_lag_up_to_one():
    np.testing.assert_allclose(fade.delta_floor([0, 2, 4, 9], floor=0.3, per_lag=0.2), [0.3, 0.7, 1.0, 1.0])


def test_dynamics_start_at_half_solve_rate_and_the_first_entropy():
    dynamics = fade.FadeDynamics()
    assert (dynamics.alpha, dynamics.delta) == (1.5, 1.0)
    dynamics.update(solve_rate=0.1, entropy=0.8)
    assert dynamics.solve_rate == pytest.approx(0.5 + 0.02 * (0.1 - 0.5), rel=1e-15)
    assert (dynamics.entropy, dynamics.target_entropy) == (0.8, 0.4)
    dynamics.update(solve_rate=0.1, entropy=0.3)
    assert dynamics.entropy == pytest.approx(0.8 + 0.02 * (0.3 - 0.8), rel=1e-15)


def test_delta_of_an_old_batch_is_held_up_by_its_lag():
    dynamics = fade.FadeDynamics(target_entropy=2.0, per_lag=0.1)
    dynamics.update(0.5, 0.5)
    assert dynamics.delta == pytest.approx(0.3)
    assert dynamics.delta_at(4) == pytest.approx(0.7)


def test_dynamics_continue_from_their_state():
    first, second = fade.FadeDynamics(), fade.FadeDynamics()
    for i in range(5):
        first.update(0.1 * i, 1.0 - 0.1 * i)
    second.load_state_dict(first.state_dict())
    first.update(0.9, 0.2)
    second.update(0.9, 0.2)
    assert first.state_dict() == second.state_dict()
    with pytest.raises(ValueError, match="but must have exactly"):
        second.load_state_dict({"solve_rate": 0.5})


def test_bad_input_is_refused_by_name():
    with pytest.raises(ValueError, match=r"p_hat is 1.1 but must be a finite number in \[0, 1\]"):
        fade.alpha(1.1)
    with pytest.raises(ValueError, match="mode is 'log'"):
        fade.delta(1, 1, mode="log")
    with pytest.raises(ValueError, match="entropy is nan"):
        fade.FadeDynamics().update(0.5, float("nan"))
