"""The conformance suite of stores."""

from lightning_core.testing.store.attempts import AttemptBehaviour
from lightning_core.testing.store.backends import BackendBehaviour
from lightning_core.testing.store.copies import CopyBehaviour
from lightning_core.testing.store.deadlines import DeadlineBehaviour
from lightning_core.testing.store.deletion import DeletionBehaviour
from lightning_core.testing.store.leases import LeaseBehaviour
from lightning_core.testing.store.queries import QueryBehaviour
from lightning_core.testing.store.queue import QueueBehaviour
from lightning_core.testing.store.requests import RequestBehaviour
from lightning_core.testing.store.resources import ResourceBehaviour
from lightning_core.testing.store.runs import RunBehaviour
from lightning_core.testing.store.spans import SpanBehaviour
from lightning_core.testing.store.waiting import WaitingBehaviour
from lightning_core.testing.store.workers import WorkerBehaviour

__all__ = ["StoreSuite"]


class StoreSuite(
    QueueBehaviour,
    AttemptBehaviour,
    DeadlineBehaviour,
    LeaseBehaviour,
    SpanBehaviour,
    ResourceBehaviour,
    WorkerBehaviour,
    QueryBehaviour,
    WaitingBehaviour,
    CopyBehaviour,
    RunBehaviour,
    DeletionBehaviour,
    RequestBehaviour,
    BackendBehaviour,
):
    """Proves that a store keeps every promise of `LightningStore`.

    Subclass it in a test file, and say how to make a store, and, where it outlives its process, how to open it again:

        from lightning_core.testing import StoreSuite
        from my_package import MyStore


        class TestMyStore(StoreSuite):
            async def make_store(self, *, clock, run_id):
                # Empty, and of its own for every test; whatever it needs (a folder, a database) is made here.
                return MyStore(new_database(), clock=clock, run_id=run_id)

            async def reopen_store(self, store, *, clock):
                await store.aclose()
                return MyStore(store.database, clock=clock, run_id=store.run_id)

    The store has to take all its time from `clock`, and its leases last 30 seconds, as they do by default. The suite
    closes what was made; a fixture of your own may clean up after it. A test that needs a capability which the store
    does not have is skipped, and says so.

    Where the store is a `StoreFacade`, its backend is tested directly, too. What a kill leaves is tried with a store
    whose `aclose` does nothing: where an open store locks its data, override `reopen_after_kill`.

    The tests are grouped by idea in the base classes; a test that a store cannot pass yet can be overridden there by
    its name, with the reason.
    """
