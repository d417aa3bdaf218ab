"""The change of the output head: its size and how much of it lies in one direction."""

import pytest
import torch

from learner.geometry import HeadChange, HeadWatch, head_change


def test_the_top_share_is_that_of_the_full_svd() -> None:
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(300, 40, generator=generator)
    push = torch.outer(torch.randn(300, generator=generator), torch.randn(40, generator=generator))
    noise = torch.randn(300, 40, generator=generator)
    for change in (noise, push + noise, push):
        values = torch.linalg.svdvals(change)
        found = head_change(base + change, base, 7)
        assert found.top_share == pytest.approx(float(values[0] ** 2 / (values**2).sum()), rel=0.05)
        assert found.norm == pytest.approx(float(change.norm() / base.norm()), rel=1e-4)
        assert found.step == 7
    assert head_change(base + push, base, 7).top_share > 0.999
    assert head_change(base + noise, base, 7).top_share < 0.1  # of 40 directions
    assert head_change(base, base, 0) == HeadChange(0, 0.0, 0.0)


def test_measuring_leaves_the_random_numbers_of_the_process_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    head_change(torch.randn(20, 10, generator=torch.Generator().manual_seed(1)), torch.zeros(20, 10) + 1e-3, 0)
    assert torch.equal(torch.rand(4), expected)


def test_the_head_is_copied_as_it_passes_only_when_a_step_is_due() -> None:
    base = {"a": torch.zeros(3), "head": torch.ones(5, 4), "b": torch.zeros(2)}
    watch = HeadWatch("head", base.items(), every=2)
    now = {name: value.clone() for name, value in base.items()}
    now["head"][0, 0] = 3.0
    passed = dict(watch.watch(now.items(), 1))
    watch.finish()
    assert watch.newest is None
    passed = dict(watch.watch(now.items(), 2))
    now["head"].zero_()  # training goes on while it is measured
    watch.finish()
    watch.close()
    assert passed.keys() == base.keys()
    assert watch.newest is not None
    assert watch.newest.step == 2
    assert watch.newest.norm == pytest.approx(2 / 20**0.5)
    assert watch.newest.top_share == pytest.approx(1)
