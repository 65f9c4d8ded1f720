"""What is turned on in the process while any tracer needs it: Weave has one client for all."""

import logging
import os
import threading
from contextlib import ExitStack
from typing import Any

from lightning_core.errors import TracerError
from lightning_weave import private
from lightning_weave.server import RecordingServer

logger = logging.getLogger(__name__)

OFFLINE = ("local", "lightning")
"""The entity and the project of a client that has no service."""

_lock = threading.Lock()
_session: "Session | None" = None
_users = 0


class Session:
    """Weave at work in this process, for all tracers until the last one is torn down."""

    def __init__(self) -> None:
        private.import_weave()
        if private.is_disabled():
            raise TracerError("WEAVE_DISABLED is set, so no call would be recorded; unset it")
        if private.current_client() is not None:
            raise TracerError(
                "this program has called weave.init(), so its calls go to Weave and not to the store; remove that "
                "call, or call weave.finish() before the run"
            )
        private.silence_error_reports()
        for variable, value in private.PLAIN_SETTINGS.items():
            os.environ.setdefault(variable, value)
        self.server = RecordingServer()
        with ExitStack() as undo:
            undo.callback(self.server.close)
            client = private.make_client(self.server, *OFFLINE)
            private.set_client(client)
            undo.callback(private.set_client, None)
            private.patch_libraries()
            undo.enter_context(private.follow_calls(self.server.entered, self.server.left))
            undo.enter_context(private.replace_init(_init(client), _finish, _skip_settings))
            self.close = undo.pop_all().close


def acquire_session() -> Session:
    """Return the process's session; the first one to ask begins it.

    Raises:
        TracerError: When the session cannot begin.
    """
    global _session, _users
    with _lock:
        if _session is None:
            _session = Session()
        _users += 1
        return _session


def release_session() -> None:
    """Let go of the session; the last one ends it."""
    global _session, _users
    with _lock:
        _users -= 1
        if _users == 0 and _session is not None:
            session, _session = _session, None
            session.close()


def _init(client: Any) -> Any:
    def init_weave(project_name: str, *args: Any, **hooks: Any) -> Any:
        logger.info("lightning.weave_init_skipped project=%s; a WeaveTracer is at work, offline", project_name)
        for name in private.HOOKS:
            if hooks.get(name):  # what an agent hides is hidden
                setattr(client, name, hooks[name])
        return client

    return init_weave


def _skip_settings(settings: Any = None) -> None:
    if settings:
        logger.warning(
            "lightning.weave_settings_skipped; they are for the whole process, where a WeaveTracer is at work: set the "
            "WEAVE_ variables of the environment before it"
        )


def _finish() -> None:
    logger.info("lightning.weave_finish_skipped; the WeaveTracer that is at work ends with its run")
