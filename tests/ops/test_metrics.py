"""Prometheus metrics: every fact of the store in one name space, as the generated table says."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from ops.monitor import known as metrics
from tests.ops.serving import SCRIPT, Served

METRICS_MD = Path(metrics.__file__).with_name("METRICS.md")


def test_the_metrics_are_the_stores_facts_by_name_and_label(served: Served) -> None:
    answer = served.get("metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    samples = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    run = ("run", "served")
    assert samples["verge_store_committed_total", run] == 11
    assert samples["verge_store_used_total", run] == 3
    assert samples["verge_store_pool", run] == 8
    assert samples["verge_store_problems_attempted", run] == 4
    assert samples["verge_store_running", run] == 1
    assert samples["verge_learner_step", run] == 6
    assert samples["verge_gating_alpha", run] == 2.25
    assert samples["verge_learner_lag_groups", ("lag", "1"), run] == 3
    assert samples["verge_gating_evaluated_version", run] == 6
    assert samples["verge_gating_pass_at_k", ("k", "1"), run] == (20 + 32 + 1) / 192
    assert 0 < samples["verge_gating_pass_at_k_se", ("k", "8"), run] < 0.5
    assert samples["verge_actor_tokens_per_s", ("actor", f"actor {SCRIPT}"), run] == 12.5
    known = {known.exposed + ("_total" if known.kind == "counter" else "") for known in metrics.METRICS}
    assert {name for name, *_ in samples} <= known
    metrics_of_the_store = {known.name for known in metrics.METRICS if known.name.startswith("store/")}
    assert len({name for name, *_ in samples if name.startswith("verge_store")}) == len(metrics_of_the_store)


def test_the_table_is_the_one_that_the_code_generates() -> None:
    assert METRICS_MD.read_text(encoding="utf-8") == metrics.table(), (
        "run python -m ops.monitor.known > ops/monitor/METRICS.md"
    )


def test_every_counter_of_the_store_has_a_metric() -> None:
    from store.runs import COUNTERS

    assert {f"store/{name}" for name in COUNTERS} <= {known.name for known in metrics.METRICS}
    assert len({known.exposed for known in metrics.METRICS}) == len(metrics.METRICS)
