"""Stores with one fault each, which the suite of stores has to find. Run by test_planted_faults.py."""

import contextlib

from lightning_core.errors import NotFound
from lightning_core.store import StoreFacade
from lightning_core.store.memory import MemoryBackend
from lightning_core.testing.store.backends import BackendBehaviour
from lightning_core.testing.store.runs import RunBehaviour


class Durable(MemoryBackend):
    """Outlives the stores over it, and knows its runs: without a fault."""

    def __init__(self):
        super().__init__()
        self.runs = {}

    async def kept_runs(self):
        return list(self.runs)

    async def insert(self, records):
        self.runs |= {record.run_id: None for record in records}
        return await super().insert(records)

    async def put_document(self, run_id, kind, key, value, **options):
        self.runs[run_id] = None
        return await super().put_document(run_id, kind, key, value, **options)

    async def aclose(self):
        pass


class ForgetsRunsOfDocuments(Durable):
    async def put_document(self, run_id, kind, key, value, **options):
        return await MemoryBackend.put_document(self, run_id, kind, key, value, **options)


class WritesWhenItIsClosed(Durable):
    def __init__(self):
        super().__init__()
        self.written = False

    async def aclose(self):
        self.written = True


class PutsWithoutRevision(Durable):
    async def put_document(self, run_id, kind, key, value, *, revision, **options):
        present = await self.get_document(run_id, kind, key)
        revision = 0 if present is None else present.revision
        return await super().put_document(run_id, kind, key, value, revision=revision, **options)


class ReplacesWithoutRevision(Durable):
    async def replace(self, old, new):
        present = await self.get(old.run_id, old.rollout.rollout_id)
        return present is not None and await super().replace(present, new)


class ListsRunsByPrefix(Durable):
    async def list_documents(self, run_id, kind):
        runs = [name for name in self.runs if name.startswith(run_id)]
        return [document for name in runs for document in await super(Durable, self).list_documents(name, kind)]


class DeletesRunsByPrefix(Durable):
    async def delete_run(self, run_id):
        for name in [run_id, *self.runs]:
            if name.startswith(run_id):
                await super().delete_run(name)


class JoinsRunAndKey(Durable):
    async def put_document(self, run_id, kind, key, value, **options):
        await super().put_document(run_id, kind, key, value, **options)
        return await super().put_document("all", kind, f"{run_id}/{key}", value, **options)

    async def get_document(self, run_id, kind, key):
        return await super().get_document("all", kind, f"{run_id}/{key}")


class NeverStopsTelling(Durable):
    def watch(self, run_id, listener):
        super().watch(run_id, listener)
        return lambda: None


class TakesSpansOfDeletedRollouts(Durable):
    async def append_spans(self, run_id, spans):
        with contextlib.suppress(NotFound):
            return await super().append_spans(run_id, spans)
        return [span.sequence_id or 1 for span in spans]


class DeletesRolloutsInSilence(Durable):
    def _announce_deleted(self, run_id, rollout_ids):
        pass


class OnBackend(RunBehaviour, BackendBehaviour):
    backend_class = Durable

    async def make_store(self, *, clock, run_id):
        return StoreFacade(self.backend_class(), clock=clock, run_id=run_id)

    async def reopen_store(self, store, *, clock):
        await store.aclose()
        backend = store.backend
        if getattr(backend, "written", True) is False:
            backend = self.backend_class()
        return StoreFacade(backend, clock=clock, run_id=store.run_id)


class TestSound(OnBackend):
    pass


FAULTY = Durable.__subclasses__()
for _each in FAULTY:
    globals()[f"Test{_each.__name__}"] = type(f"Test{_each.__name__}", (OnBackend,), {"backend_class": _each})
