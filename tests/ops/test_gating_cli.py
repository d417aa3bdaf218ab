"""`verge gating` and `verge bench draw`: the answers a script reads."""

import json

import pytest
from typer.testing import CliRunner

from ops import bench_draw
from ops.gating_cli import app
from store.errors import VergeError


def ask(*arguments: str):
    result = CliRunner().invoke(app, [*arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_slope_answers_with_masses_and_slope_for_each_p():
    rows = ask("slope", "--advantage", "power", "--param", "alpha=2", "--p", ".05,.5")
    assert [list(row) for row in rows] == [["p", "m_success", "m_failure", "slope"]] * 2
    assert [row["slope"] * row["p"] * (1 - row["p"]) for row in rows] == pytest.approx([0.0348, 0.1094], abs=5e-5)
    assert rows[1]["m_success"] == pytest.approx(0.1094, abs=5e-5)  # DESIGN §5


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("asym_grpo", ["delta=.5"]),
        ("f_grpo", ["gamma=.5", "inner=drgrpo"]),
        ("w_reinforce", ["lam=.2"]),
        ("rs_grpo", ["beta=2"]),
        ("passk", ["k=4"]),
        ("pkpo", ["k=4"]),
        ("asymre", ["offset=-.2"]),
        ("fade", ["alpha=2", "delta=.5"]),
        ("bbg", ["k=16", "tau=.01"]),
    ],
)
def test_slope_takes_each_parameter_that_the_methods_have(name, params):
    rows = ask("slope", "--advantage", name, *[part for p in params for part in ("--param", p)])
    assert [row["p"] for row in rows] == [0.05, 0.2, 0.5, 0.8]


def test_fade_answers_with_alpha_and_delta():
    assert ask("fade", "--solve-rate", ".4", "--entropy", ".6", "--target-entropy", "1.0") == {
        "alpha": pytest.approx(2.25),
        "delta": pytest.approx(0.6),
    }


def test_bbg_answers_for_every_count_of_the_group():
    rows = ask("bbg", "--group-size", "8", "--k", "16")
    assert [row["successes"] for row in rows] == list(range(9))
    assert [row["gate_open"] for row in rows] == [True] * 4 + [False] * 5
    assert rows[1]["utility"] == pytest.approx(2.0870, abs=5e-5)  # DESIGN §5
    assert rows[0]["pass_at_k"] == pytest.approx(16 / 25)  # E[1 − q^16] under Beta(1, 9)
    assert [row["successes"] for row in ask("bbg", "--successes", "0,8")] == [0, 8]


def test_beta_and_mu_answer_both_ways():
    answer = ask("beta", "--p", ".1", "--mu", ".9")
    assert answer["beta"] == pytest.approx(0.2276, abs=5e-5)
    assert answer["kl_filtered_tilted"] == pytest.approx(0.10536, abs=5e-6)
    assert answer["tv"] == pytest.approx(0.1)
    assert answer["kappa"] == pytest.approx(1.75778, abs=5e-6)
    assert ask("mu", "--p", ".1", "--beta", ".2276")["mu"] == pytest.approx(0.9, abs=1e-4)


def test_passk_answers_for_each_k():
    rows = ask("passk", "--n", "256", "--c", "3", "--k", "1,16")
    assert [row["k"] for row in rows] == [1, 16]
    assert rows[0]["pass_at_k"] == pytest.approx(3 / 256)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slope", "--advantage", "grpo", "--p", "1.5"], "p is 1.5 but must be"),
        (["slope", "--advantage", "grpo", "--p", "a"], "--p is 'a' but must be numbers"),
        (["slope", "--advantage", "power", "--param", "alpha"], "--param is 'alpha' but must be NAME=VALUE"),
        (["slope", "--advantage", "power", "--param", "alpha=x"], "alpha is 'x' but must be a number"),
        (["bbg", "--successes", "9"], "c is 9 but must be in"),
        (["beta", "--p", ".5", "--mu", ".4"], "mu is 0.4 but must be in"),
        (["passk", "--n", "4", "--c", "1", "--k", "5"], "k is 5 but must be in"),
        (["atlas", "sheet.gif"], "must end in .png, .svg or .html"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message):
    with pytest.raises(VergeError, match=message):
        CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_the_atlas_page_has_the_drawing_and_every_source(tmp_path):
    out = tmp_path / "atlas.html"
    assert CliRunner().invoke(app, ["atlas", str(out)], catch_exceptions=False).exit_code == 0
    page = out.read_text()
    assert page.count("<svg") == 1
    for source in ("2402.03300", "2506.01347", "2601.22582"):
        assert source in page


def test_the_draw_bench_times_every_pool_size():
    result = bench_draw.run()
    assert [row["groups"] for row in result["draws"]] == [10**3, 10**4, 10**5, 10**6]
    assert [row["name"] for row in result["checks"]] == ["draw_1e6_ms", "growth_exponent"]
    assert result["checks"][1]["ok"], result
