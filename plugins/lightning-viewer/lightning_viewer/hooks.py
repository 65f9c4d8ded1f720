"""Writes the report of a run when the run has ended."""

import asyncio
import logging

from lightning_core.errors import LightningError
from lightning_core.runs.folder import RunFolder
from lightning_core.store import LightningStore

logger = logging.getLogger(__name__)

MAX_ROLLOUTS = 200_000
"""For a run with more rollouts the report is not written at its end, since that takes a minute."""


MAX_SECONDS = 300.0
"""How long a run waits for its report at most, such as on a store that does not answer."""


class ReportWriter:
    """The plugin."""

    stays_with_algorithm = True
    """Runner processes do without it."""

    async def lightning_run_recorded(self, folder: RunFolder, store: LightningStore) -> None:
        """Write the report into the folder of the run. What goes wrong is logged: the run itself is kept."""
        try:
            async with asyncio.timeout(MAX_SECONDS):
                why = await _write(folder, store)
        except TimeoutError:
            why = f"its store took more than {MAX_SECONDS:g} s"
        except (OSError, LightningError) as exc:  # such as a full disk
            why = str(exc)
        except Exception as exc:  # such as a span that cannot be read
            logger.warning("lightning.report_not_written run_id=%s", folder.run_id, exc_info=exc)
            return
        if why is not None:
            words = "lightning.report_not_written run_id=%s: %s; write it with: agl report %s"
            logger.warning(words, folder.run_id, why, folder.run_id)


async def _write(folder: RunFolder, store: LightningStore) -> str | None:
    """Write the report; return why not, where it is too large to wait for."""
    count = (await store.query_rollouts(limit=0)).total
    if count > MAX_ROLLOUTS:
        return f"it has {count:,} rollouts"
    from lightning_viewer.collect import collect  # late: a run that starts does not wait for it
    from lightning_viewer.report import REPORT_FILE, write_report

    write_report(await collect(folder, store), folder.path / REPORT_FILE)
    return None
