"""One TOML file, read, overridden, refused and compared."""

import json
from pathlib import Path

import pytest

from ops.config import RunConfig, fingerprint, fingerprint_fields, load_config, parse_config
from store.errors import VergeError

CONFIGS = Path(__file__).parents[2] / "ops" / "configs"
MINIMAL = {"name": "r", "model": {"path": "tiny"}, "problems": {"source": "builtin:countdown"}}


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_config_is_valid_and_survives_a_round_trip(path: Path) -> None:
    config = load_config(path)
    assert parse_config(json.loads(config.model_dump_json()), "again") == config


def test_an_override_is_read_as_toml_and_else_as_a_string() -> None:
    config = load_config(CONFIGS / "demo.toml", ["learner.lr=2e-5", "model.path=some/folder", "evaluation.k=[1, 2]"])
    assert config.learner.lr == 2e-5
    assert config.model.path == "some/folder"
    assert config.evaluation.k == (1, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learner": {"lrr": 1.0}}, "unknown key learner.lrr; did you mean learner.lr?"),
        ({"lerner": {}}, "unknown key lerner; did you mean learner?"),
        ({"model": {}}, "model.path is missing"),
        ({"evaluation": {"method": "sampled", "k": [128]}}, "raise samples_per_problem or lower k"),
        ({"evaluation": {"every": 5, "k": [128]}}, "k holds 128, but samples_per_problem is 64"),
        ({"evaluation": {"every": 5, "method": "off"}}, "every is 5, but method is off, which measures nothing"),
        (
            {"store": {"max_groups": 100}},
            "store.max_groups is 100 but must be ≥ 1600 (= learner.checkpoint_every",
        ),
        ({"sampling": {"group_size": 2}, "objective": {"advantage": "passk"}}, "sampling.group_size is 2, but passk"),
        (
            {"sampling": {"max_completion_tokens": 32}, "objective": {"overlong_cache": 40}},
            "objective.overlong_cache is 40 but must be ≤ 32 (= sampling.max_completion_tokens)",
        ),
    ],
)
def test_a_config_is_refused_with_the_field_and_the_fix(change: dict[str, object], message: str) -> None:
    with pytest.raises(VergeError) as refused:
        parse_config({**MINIMAL, **change}, "run.toml")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_missing_or_malformed_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(VergeError, match="no such file"):
        load_config(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("name = ")
    with pytest.raises(VergeError, match="not valid TOML"):
        load_config(broken)


def test_every_field_says_what_it_means() -> None:
    schema = RunConfig.model_json_schema()
    undocumented = [
        f"{section}.{name}"
        for section, body in {"run": schema, **schema["$defs"]}.items()
        for name, field in body.get("properties", {}).items()
        if not field.get("description") and "$ref" not in field
    ]
    assert not undocumented


def test_the_fingerprint_moves_with_what_is_learned_and_not_with_where_it_runs() -> None:
    base = parse_config(MINIMAL, "a")
    assert fingerprint(parse_config({**MINIMAL, "actor": {"count": 3}, "learner": {"steps": 7}}, "b")) == fingerprint(
        base
    )
    assert fingerprint(parse_config({**MINIMAL, "evaluation": {"every": 5}}, "e")) == fingerprint(base)
    assert fingerprint(parse_config({**MINIMAL, "learner": {"lr": 0.5}}, "c")) != fingerprint(base)
    assert "gating.k" in fingerprint_fields(base)
