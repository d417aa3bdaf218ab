from ops import bench_store


def test_a_small_bench_of_the_store_measures_every_figure_it_is_checked_by() -> None:
    figures = bench_store.run(pools=(50, 400), problems=100, seconds=0.2, producers=(1,), payloads=(4096,))
    values = {check["name"]: check["value"] for check in figures["checks"]}
    (cell,) = figures["grid"]
    assert values["commit_over_raw_set"] == cell["commits_per_s"] / cell["raw_sets_per_s"]
    assert 0 < cell["commit_p50_ms"] <= cell["commit_p99_ms"] == values["commit_p99_ms"]
    assert 0.9 < cell["payload_bytes"] / 4096 <= 1
    assert [row["groups"] for row in figures["draw_fetch"]] == [50, 100, 400]
    assert values["draw_fetch_64_of_1e3_ms"] == figures["draw_fetch"][-1]["ms"] > 0
    assert values["mirror_cold_s"] > 0
    assert values["query_1e2_s"] > 0
    assert values["commit_slowdown_under_query"] < 1
