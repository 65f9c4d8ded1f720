"""What Prometheus reads, by its own parser; 0.3's `utils.metrics`; and the dashboard for Grafana."""

import asyncio
import json
import re
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

import pytest
from lightning_core.utils.metrics import (
    ConsoleMetricsBackend,
    PrometheusMetricsBackend,
    tracked,
)
from lightning_http import LightningStoreServer, metrics
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lightning_core.emitter import emit_reward
from lightning_core.store import InMemoryLightningStore
from lightning_core.testing.store.base import span_of

DASHBOARD = Path(__file__).parents[3] / "docs" / "grafana.json"


def read_page(page: bytes) -> dict[str, float]:
    """Read a page as Prometheus does: `name{label=value}` -> value."""
    samples = [each for family in text_string_to_metric_families(page.decode()) for each in family.samples]
    return {f"{each.name}{{{', '.join(map('='.join, sorted(each.labels.items())))}}}": each.value for each in samples}


def scrape(url: str) -> dict[str, float]:
    with urllib.request.urlopen(url) as answer:
        assert answer.headers["content-type"].startswith("text/plain")
        return read_page(answer.read())


async def end_two_of_three(store: InMemoryLightningStore) -> None:
    """Let one rollout succeed and one fail, and a third wait."""
    for mode in ("train", "train", "val"):
        await store.enqueue_rollout("task", mode=mode)
    beat = {"host": "m1", "cpu_usage_pct": 20.0, "mem_pct": 30.0}
    for worker in ("w-1", "w-2"):
        await store.update_worker(worker, beat)
    for status in ("succeeded", "failed"):
        rollout = await store.dequeue_rollout("w-1")
        own = rollout.rollout_id, rollout.attempt.attempt_id
        if status == "succeeded":
            reward = emit_reward(0.75, propagate=False)
            await store.add_span(span_of(rollout, attributes=reward.attributes))
        used = {"calls": 2, "input_tokens": 30, "output_tokens": 4, "cost": 0.25}
        await store.update_attempt(*own, status=status, add_metadata={"usage": used})
        await store.update_attempt(*own, add_metadata={"later": True})  # ended once, counted once


@pytest.fixture
async def counted() -> dict[str, float]:
    tracker = PrometheusMetricsBackend(CollectorRegistry())
    store = InMemoryLightningStore(tracker=tracker)
    async with LightningStoreServer(store) as server:
        await end_two_of_three(store)
        await asyncio.to_thread(scrape, f"{server.url}/metrics")
        with pytest.raises(HTTPError):
            await asyncio.to_thread(scrape, f"{server.url}/v1/agl/rollouts/ro-none")
        return await asyncio.to_thread(scrape, f"{server.url}/v1/prometheus/")


async def test_prometheus_reads_how_a_run_goes(counted):
    expected = {
        "agl_rollouts_total{mode=train, status=succeeded}": 1,
        "agl_rollouts_total{mode=train, status=failed}": 1,
        "agl_rollouts_duration_count{mode=train, status=succeeded}": 1,
        "agl_rollouts_wait_count{mode=train}": 2,
        "agl_rollouts_reward_sum{mode=train}": 0.75,
        "agl_rollouts_live{status=queuing}": 1,
        "agl_rollouts_live{status=running}": 0,
        "agl_queue_depth{}": 1,
        "agl_attempts_total{status=failed}": 1,
        "agl_model_calls_total{}": 4,
        "agl_model_input_tokens_total{}": 60,
        "agl_model_output_tokens_total{}": 8,
        "agl_model_cost_usd_total{}": 0.5,
        "agl_workers{status=idle}": 1,
        "agl_workers{status=unknown}": 1,
        "agl_store_total{method=enqueue_rollout, status=OK, store_pubmeth=enqueue_rollout}": 3,
        "agl_store_total{method=dequeue_rollout, status=OK, store_pubmeth=dequeue_rollout}": 2,
        "agl_http_total{method=GET, path=/metrics, status=200}": 1,
        "agl_http_total{method=GET, path=/v1/agl/rollouts/{rollout_id}, status=404}": 1,
        "agl_store_records{kind=rollouts}": 3,
    }
    assert {name: counted.get(name) for name in expected} == expected


class Slow(InMemoryLightningStore):
    """One that counts as a large database does."""

    counted = 0

    async def statistics(self):
        self.counted += 1
        await asyncio.sleep(0.1)
        return await super().statistics()


async def test_what_takes_long_to_count_is_not_counted_at_each_scrape(monkeypatch):
    monkeypatch.setattr(metrics, "SLOW_SECONDS", 0.05)
    monkeypatch.setattr(metrics, "SELDOM", 1000.0)
    store = Slow()
    await store.enqueue_rollout("task")
    async with LightningStoreServer(store) as server:
        pages = await asyncio.gather(*(asyncio.to_thread(scrape, f"{server.url}/metrics") for _ in range(2)))
        pages.append(await asyncio.to_thread(scrape, f"{server.url}/metrics"))
    assert [page["agl_queue_depth{}"] for page in pages] == [1, 1, 1]
    assert store.counted == 1


@pytest.mark.parametrize("odd", [{"host": "a\ud800"}, {"cpu_usage_pct": 10**400}])
async def test_an_odd_heartbeat_hides_no_other_metric(odd):
    store = InMemoryLightningStore()
    await store.update_worker("w-1", odd)
    async with LightningStoreServer(store) as server:
        assert (await asyncio.to_thread(scrape, f"{server.url}/metrics"))["agl_workers{status=unknown}"] == 1


async def test_odd_usage_and_a_tracker_that_raises_change_nothing_of_the_store(caplog):
    def closed(line: str) -> None:
        raise OSError("the pipe is closed")

    console = ConsoleMetricsBackend(write=closed, log_interval_seconds=0.0)
    store = InMemoryLightningStore(tracker=console)
    rollout = await store.start_rollout("task")
    used = {"calls": "abc", "cost": float("nan"), "input_tokens": [1], "output_tokens": 4}
    await store.update_attempt(rollout.rollout_id, "latest", status="succeeded", metadata={"usage": used})
    assert (await store.get_rollout_by_id(rollout.rollout_id)).status == "succeeded"
    assert "lightning.not_counted" in caplog.text


async def test_the_dashboard_asks_for_what_there_is(counted):
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    shown = {name.partition("{")[0] for name in counted}
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            names = re.findall(r"agl_\w+", target["expr"])
            assert set(names) <= shown
            labels = {label for by in re.findall(r"by \(([^)]*)\)", target["expr"]) for label in by.split(", ")}
            has = {
                pair.partition("=")[0]
                for name in counted
                for pair in name.partition("{")[2].rstrip("}").split(", ")
                if name.partition("{")[0] in names
            }
            assert labels <= has, target["expr"]
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= has | {"instance"}, target


async def test_a_tracked_method_is_counted_with_how_it_ended():
    class Shop:
        tracker = PrometheusMetricsBackend(CollectorRegistry())

        @tracked("sell")
        async def sell(self, number: int) -> int:
            return 10 // number

    Shop.tracker.register_counter("agl.store.total", ("method", "store_pubmeth", "status"))
    Shop.tracker.register_histogram("agl.store.latency", ("method", "store_pubmeth", "status"))
    assert await Shop().sell(5) == 2
    with pytest.raises(ZeroDivisionError):
        await Shop().sell(0)
    counts = read_page(generate_latest(Shop.tracker.registry))
    for status in ("OK", "ZeroDivisionError"):
        assert counts[f"agl_store_total{{method=sell, status={status}, store_pubmeth=sell}}"] == 1
