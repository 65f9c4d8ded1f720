"""Versions of the resources, and which one a rollout gets."""

import pytest

from lightning_core.errors import InvalidRequest, NotFound
from lightning_core.store import LightningStore
from lightning_core.testing.clock import FakeClock
from lightning_core.testing.store.base import StoreBehaviour, claim, present
from lightning_core.types import LLM, EnqueueRolloutRequest, NamedResources, PromptTemplate, ProxyLLM


def prompt(text: str) -> NamedResources:
    """Make a bundle of one prompt."""
    return {"main_prompt": PromptTemplate(template=text)}


class ResourceBehaviour(StoreBehaviour):
    """Resources are versioned; a rollout uses one version."""

    async def test_a_bundle_comes_back_with_its_types(self, store: LightningStore, clock: FakeClock) -> None:
        bundle: NamedResources = {
            "prompt": PromptTemplate(template="{{ question }}", engine="jinja"),
            "model": LLM(endpoint="http://host/v1", model="m", api_key="k", sampling_parameters={"stop": ["a"]}),
            "proxy": ProxyLLM(endpoint="http://proxy/v1", model="m"),
        }
        added = await store.add_resources(bundle)
        assert (added.version, added.create_time, added.update_time) == (1, clock.now(), clock.now())
        found = present(await store.get_resources_by_id(added.resources_id))
        assert found == added
        assert {name: type(resource) for name, resource in found.resources.items()} == {
            "prompt": PromptTemplate,
            "model": LLM,
            "proxy": ProxyLLM,
        }
        assert found.resources == bundle

    async def test_every_addition_is_another_version_and_the_latest(self, store: LightningStore) -> None:
        assert await store.get_latest_resources() is None
        first, second = await store.add_resources(prompt("a")), await store.add_resources(prompt("b"))
        assert first.resources_id != second.resources_id
        assert await store.get_latest_resources() == second
        assert await store.get_resources_by_id(first.resources_id) == first
        assert await store.get_resources_by_id("rs-none") is None

    async def test_an_update_replaces_the_bundle_and_becomes_the_latest(
        self, store: LightningStore, clock: FakeClock
    ) -> None:
        first = await store.add_resources(prompt("a"))
        await store.add_resources(prompt("b"))
        await clock.advance(5)
        updated = await store.update_resources(first.resources_id, prompt("c"))
        assert (updated.version, updated.create_time, updated.update_time) == (2, first.create_time, clock.now())
        assert updated.resources == prompt("c")
        assert await store.get_latest_resources() == updated
        assert (await store.query_resources()).total == 2

    async def test_a_version_names_the_one_that_it_was_made_from(self, store: LightningStore) -> None:
        first = await store.add_resources(prompt("a"))
        second = await store.add_resources(prompt("b"), parent_id=first.resources_id)
        assert (first.parent_id, second.parent_id) == (None, first.resources_id)
        assert await store.get_resources_by_id(second.resources_id) == second
        updated = await store.update_resources(second.resources_id, prompt("c"))
        assert (updated.parent_id, updated.version) == (first.resources_id, 2)
        assert [each.parent_id for each in await store.query_resources()] == [None, first.resources_id]

    async def test_a_parent_that_is_not_there_is_refused(self, store: LightningStore) -> None:
        with pytest.raises(NotFound, match="has no resources 'rs-none'"):
            await store.add_resources(prompt("a"), parent_id="rs-none")
        assert await store.get_latest_resources() is None

    async def test_a_repeated_addition_keeps_the_parent_of_the_first(self, store: LightningStore) -> None:
        one, other = await store.add_resources(prompt("a")), await store.add_resources(prompt("b"))
        child = await store.add_resources(prompt("c"), parent_id=one.resources_id, request_id="c")
        again = await store.add_resources(prompt("c"), parent_id=other.resources_id, request_id="c")
        assert (again, again.parent_id) == (child, one.resources_id)
        assert (await store.query_resources()).total == 3

    async def test_a_bundle_of_something_else_is_refused(self, store: LightningStore) -> None:
        with pytest.raises(InvalidRequest, match="not a bundle of resources"):
            await store.add_resources({"a": 1})  # type: ignore[dict-item]
        assert await store.get_latest_resources() is None

    async def test_a_rollout_takes_the_latest_resources_when_it_is_enqueued(self, store: LightningStore) -> None:
        before = await store.add_resources(prompt("a"))
        latest = await store.add_resources(prompt("b"))
        many = [
            EnqueueRolloutRequest(input="own", resources_id=before.resources_id),
            EnqueueRolloutRequest(input="latest"),
        ]
        queued = [*await store.enqueue_many_rollouts(many), await store.enqueue_rollout("alone")]
        ids = [before.resources_id, latest.resources_id, latest.resources_id]
        assert [each.resources_id for each in queued] == ids
        await store.add_resources(prompt("c"))
        assert [(await claim(store)).resources_id for _ in ids] == ids

    async def test_a_claim_gets_the_latest_resources_where_there_were_none(self, store: LightningStore) -> None:
        queued = await store.enqueue_rollout("a")
        assert queued.resources_id is None
        latest = await store.add_resources(prompt("a"))
        claimed = await claim(store)
        assert claimed.resources_id == latest.resources_id
        assert await store.get_rollout_by_id(claimed.rollout_id) == claimed

    async def test_a_retry_keeps_the_resources_of_the_first_attempt(self, store: LightningStore) -> None:
        first = await store.add_resources(prompt("a"))
        await store.enqueue_rollout("a")
        claimed = await claim(store)
        await store.add_resources(prompt("b"))
        await store.update_rollout(claimed.rollout_id, status="requeuing")
        assert (await claim(store)).resources_id == first.resources_id

    async def test_a_started_rollout_gets_the_latest_resources(self, store: LightningStore) -> None:
        assert (await store.start_rollout("a")).resources_id is None
        latest = await store.add_resources(prompt("a"))
        assert (await store.start_rollout("a")).resources_id == latest.resources_id
        queued = await store.enqueue_rollout("b")
        assert (await store.start_attempt(queued.rollout_id)).resources_id == latest.resources_id

    async def test_versions_are_queried_oldest_first(self, store: LightningStore) -> None:
        for name in ("rs-b", "rs-a", "rs-c"):
            await store.update_resources(name, prompt(name))
        await store.update_resources("rs-a", prompt("again"))
        assert [item.resources_id for item in await store.query_resources()] == ["rs-b", "rs-a", "rs-c"]
        assert [item.resources_id for item in await store.query_resources(resources_id="rs-a")] == ["rs-a"]
        assert (await store.query_resources(resources_id_contains="rs-")).total == 3
        by_version = await store.query_resources(sort_by="version", sort_order="desc", limit=1)
        assert ([item.resources_id for item in by_version], by_version.total) == (["rs-a"], 3)
        with pytest.raises(InvalidRequest, match="cannot sort ResourcesUpdates by 'resources'"):
            await store.query_resources(sort_by="resources")
