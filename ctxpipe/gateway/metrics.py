"""The totals of a gateway as metrics, for Prometheus or as JSON.

Both are written from the same samples, which are read from the records of the tenants at each
request: nothing is counted twice. The labels have few values: tenants are named in the token file,
stages by the pipeline, and everything else is a fixed list. Sessions and models are no labels,
because clients choose their names; the log has them for each turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from .record import BUCKETS, GatewayRecord

PREFIX = "ctxpipe_gateway"


class TotalCounter(NamedTuple):
    """A counter: its *name* without the prefix, and its *values* in the record of a tenant.

    *label* is the name of the label whose values are the keys of *values*; "" if there is one value
    without a label.
    """

    name: str
    documentation: str
    label: str
    values: Callable[[GatewayRecord], Mapping[str, float]]


COUNTERS: Sequence[TotalCounter] = (
    TotalCounter(
        "requests",
        "Requests by outcome: turns (unchanged, shaped, recovered, not shaped), others (passed, "
        "refused, over budget, failed).",
        "outcome",
        lambda record: record.outcomes,
    ),
    TotalCounter(
        "replies",
        "Turns by the class of the reply's HTTP status.",
        "status",
        lambda record: record.statuses,
    ),
    TotalCounter(
        "context_tokens",
        "Tokens by ctxpipe's count: of the clients' histories, and of the contexts sent instead.",
        "context",
        lambda record: {"history": record.history_tokens, "sent": record.sent_tokens},
    ),
    TotalCounter(
        "billed_tokens",
        "Tokens that the API reported: input (not cached), cache_read, cache_write, output.",
        "kind",
        lambda record: record.billed_tokens,
    ),
    TotalCounter(
        "dollars",
        "Price of the turns whose model has a listed price.",
        "",
        lambda record: {"": record.dollars},
    ),
    TotalCounter(
        "priced_turns",
        "Turns whose price is known.",
        "",
        lambda record: {"": record.priced_turns},
    ),
    TotalCounter(
        "removed_tokens",
        "Tokens that stages removed from contexts, by ctxpipe's count.",
        "stage",
        lambda record: record.removed_tokens,
    ),
    TotalCounter(
        "compactions",
        "Compactions of a context.",
        "",
        lambda record: {"": record.compactions},
    ),
)


@dataclass(frozen=True, slots=True)
class TenantTotals:
    """The totals of the tenant called *label*, and its conversations in memory."""

    label: str
    record: GatewayRecord
    conversations: int = 0
    conversation_bytes: int = 0


def snapshot(record: GatewayRecord) -> GatewayRecord:
    """Return the totals of *record*, which another thread may read while requests are counted."""
    return GatewayRecord.of_all([replace(record, turns=deque())])


class GatewayMetrics:
    """The metrics of *tenants*, and of the *stores*, whose values are True if they can be used."""

    def __init__(self, tenants: Sequence[TenantTotals], stores: Mapping[str, bool]) -> None:
        self._tenants = tenants
        self._stores = stores

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics with their samples."""
        for counter in COUNTERS:
            yield self._counter(counter)
        yield self._latency()
        conversations = GaugeMetricFamily(
            f"{PREFIX}_conversations", "Conversations in memory.", labels=["tenant"]
        )
        size = GaugeMetricFamily(
            f"{PREFIX}_conversation_bytes",
            "Approximate memory of the conversations.",
            labels=["tenant"],
        )
        for tenant in self._tenants:
            conversations.add_metric([tenant.label], tenant.conversations)
            size.add_metric([tenant.label], tenant.conversation_bytes)
        yield conversations
        yield size
        stores = GaugeMetricFamily(
            f"{PREFIX}_store_up",
            "1 if the upstream, the texts or the journal can be used.",
            labels=["store"],
        )
        for store, is_usable in self._stores.items():
            stores.add_metric([store], float(is_usable))
        yield stores

    def _counter(self, counter: TotalCounter) -> Metric:
        """Return *counter* with a sample for each tenant and value."""
        labels = ["tenant", counter.label] if counter.label else ["tenant"]
        family = CounterMetricFamily(
            f"{PREFIX}_{counter.name}", counter.documentation, labels=labels
        )
        for tenant in self._tenants:
            for key, value in counter.values(tenant.record).items():
                family.add_metric([tenant.label, key][: len(labels)], value)
        return family

    def _latency(self) -> Metric:
        """Return the histogram of the time that shaping adds to a turn."""
        family = HistogramMetricFamily(
            f"{PREFIX}_added_seconds",
            "Time that shaping adds to a turn, summaries included.",
            labels=["tenant"],
        )
        for tenant in self._tenants:
            counts = accumulate(tenant.record.added_buckets[bound] for bound in BUCKETS)
            buckets = [
                ("+Inf" if bound == BUCKETS[-1] else str(bound), count)
                for bound, count in zip(BUCKETS, counts, strict=True)
            ]
            family.add_metric([tenant.label], buckets, tenant.record.added_seconds)
        return family


def as_text(metrics: GatewayMetrics, accept: str) -> tuple[bytes, str]:
    """Return *metrics* and those of the process for Prometheus, and the type of the content.

    *accept* is the header of the request, which selects the format.
    """
    registry = CollectorRegistry()
    registry.register(metrics)
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def as_json(metrics: GatewayMetrics) -> dict[str, list[dict[str, object]]]:
    """Return the samples of *metrics* by the name of the sample: their labels and values."""
    samples: dict[str, list[dict[str, object]]] = {}
    for family in metrics.collect():
        for sample in family.samples:
            values = {"labels": sample.labels, "value": sample.value}
            samples.setdefault(sample.name, []).append(values)
    return samples
