"""Metrics as prometheus_client hands them out."""

from collections.abc import Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ops.monitor.known import METRICS, Values


class Families(Collector):
    """The metrics of a run, for Prometheus."""

    def __init__(self, run: str, values: Values) -> None:
        self._run, self._values = run, values

    def collect(self) -> Iterator[Metric]:
        """Those that have a value."""
        for known in METRICS:
            if known.name not in self._values:
                continue
            labels = ["run"] if known.label is None else ["run", known.label]
            make = CounterMetricFamily if known.kind == "counter" else GaugeMetricFamily
            family = make(known.exposed, f"{known.meaning} ({known.unit})", labels=labels)
            for label, value in self._values[known.name].items():
                family.add_metric([self._run] if known.label is None else [self._run, label], float(value))
            yield family
