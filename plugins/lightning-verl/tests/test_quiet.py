"""verl's prints stay out of a run's standard output."""

import logging
import threading

import pytest
from lightning_verl.quiet import quiet_thread


def test_only_the_one_thread_is_silenced(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    is_inside, may_end = threading.Event(), threading.Event()

    def work() -> None:
        with quiet_thread():
            print("of verl", 1)
            is_inside.set()
            may_end.wait(5)
        print("after")

    with caplog.at_level(logging.DEBUG, logger="lightning_verl.quiet"):
        thread = threading.Thread(target=work)
        thread.start()
        is_inside.wait(5)
        print("of the run")
        may_end.set()
        thread.join()
    assert capsys.readouterr().out == "of the run\nafter\n"
    assert caplog.messages == ["lightning_verl.printed of verl 1"]
