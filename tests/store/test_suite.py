"""The suite as an author of a store uses it: a short file outside of this checkout, asyncio in strict mode."""

import textwrap
from pathlib import Path

from tests.store.authors import run_pytest

AUTHORS_FILE = """
    from lightning_core.store import InMemoryLightningStore
    from lightning_core.testing import StoreSuite


    class ForgetfulStore(InMemoryLightningStore):
        async def load_state(self, name):
            return None

        @property
        def capabilities(self):
            return {}


    class TestForgetfulStore(StoreSuite):
        async def make_store(self, *, clock, run_id):
            return ForgetfulStore(clock=clock, run_id=run_id)
"""


def test_an_author_learns_what_their_store_breaks_and_what_was_skipped(tmp_path: Path) -> None:
    (tmp_path / "test_forgetful.py").write_text(textwrap.dedent(AUTHORS_FILE))
    finished = run_pytest(tmp_path, "-rsf", "-W", "error")
    assert finished.returncode == 1, finished.stdout + finished.stderr
    failed = {
        line.split("::")[-1].split(" - ")[0] for line in finished.stdout.splitlines() if line.startswith("FAILED")
    }
    assert failed == {
        "test_state_is_kept_by_name",
        "test_workers_and_state_are_copied_in_and_out",
        "test_runs_share_a_store_and_see_nothing_of_each_other",
        "test_runs_with_similar_names_are_as_much_apart_as_any",
        "test_a_request_repeated_late_and_after_many_others_undoes_nothing[save_state-hours later]",
        "test_an_old_id_that_comes_again_with_other_arguments_is_refused",
        *(f"test_state_that_json_cannot_hold_is_refused[{kind}]" for kind in ("nan", "set", "object")),
    }
    assert "assert None == {'round': 2}" in finished.stdout
    assert "ForgetfulStore is not thread_safe, by its capabilities" in finished.stdout
    assert "ForgetfulStore keeps nothing after it is closed" in finished.stdout
