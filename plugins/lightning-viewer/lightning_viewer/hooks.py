"""Writes the report of a run when the run has ended."""

import logging

from lightning_core.errors import LightningError
from lightning_core.runs.folder import RunFolder
from lightning_core.store import LightningStore

logger = logging.getLogger(__name__)

MAX_ROLLOUTS = 200_000
"""For a run with more rollouts the report is not written at its end, since that takes a minute."""


class ReportWriter:
    """The plugin."""

    stays_with_algorithm = True
    """Runner processes do without it."""

    async def lightning_run_recorded(self, folder: RunFolder, store: LightningStore) -> None:
        """Write the report into the folder of the run."""
        count = (await store.query_rollouts(limit=1)).total
        if count > MAX_ROLLOUTS:
            logger.warning(
                "lightning.report_not_written run_id=%s rollouts=%d: write it with: agl report %s",
                folder.run_id,
                count,
                folder.run_id,
            )
            return
        from lightning_viewer.collect import collect  # late: a run that starts does not wait for it
        from lightning_viewer.report import REPORT_FILE, write_report

        try:
            write_report(await collect(folder, store), folder.path / REPORT_FILE)
        except (OSError, LightningError) as exc:  # such as a full disk: the run itself is kept as far as it can be
            logger.warning("lightning.report_not_written run_id=%s: %s", folder.run_id, exc)
