"""What is turned on in the process while any tracer needs it: Weave has one client for all."""

import logging
import os
import threading
from contextlib import ExitStack
from typing import Any

from lightning_core.errors import TracerError
from lightning_weave import private
from lightning_weave.forwarding import Forwarding
from lightning_weave.server import RecordingServer

logger = logging.getLogger(__name__)

OFFLINE = ("local", "lightning")
"""The entity and the project of a client that has no service."""

_lock = threading.Lock()
_session: "Session | None" = None
_users = 0


class Session:
    """Weave at work in this process, for all tracers until the last one is torn down.

    Args:
        project: Where calls go besides, as `entity/project`; None for nowhere.
        api_key: The key of Weave's service; None for the one that the environment has.
        timeout_seconds: How long the end waits for the service.
    """

    def __init__(self, project: str | None, api_key: str | None, timeout_seconds: float) -> None:
        self.project = project
        """Where calls go besides; None for nowhere."""
        private.import_weave()
        if private.is_disabled():
            raise TracerError("WEAVE_DISABLED is set, so no call would be recorded; unset it")
        if private.current_client() is not None:
            raise TracerError(
                "this program has called weave.init(), so its calls go to Weave and not to the store; remove that call "
                "(WeaveTracer(project='entity/project') sends calls to both), or call weave.finish() before the run"
            )
        with ExitStack() as undo:
            entity, name = OFFLINE
            forwarding: Forwarding | None = None
            if project is not None:
                entity, name, forwarding = _connected(project, api_key)
                undo.callback(forwarding.close, timeout_seconds)
            else:
                private.silence_error_reports()
                for variable, value in private.PLAIN_SETTINGS.items():
                    os.environ.setdefault(variable, value)
            self.server = RecordingServer(forwarding)
            undo.callback(self.server.close)
            client = private.make_client(self.server, entity, name)
            private.set_client(client)
            undo.callback(private.set_client, None)
            private.patch_libraries()
            undo.enter_context(private.follow_calls(self.server.entered, self.server.left))
            undo.enter_context(private.replace_init(_init(client), _finish, _skip_settings))
            self.close = undo.pop_all().close


def acquire_session(project: str | None, api_key: str | None, timeout_seconds: float) -> Session:
    """Return the process's session; the first one to ask begins it.

    Raises:
        TracerError: When another tracer works with another project, or the session cannot begin.
    """
    global _session, _users
    with _lock:
        if _session is None:
            _session = Session(project, api_key, timeout_seconds)
        elif project != _session.project:
            at_work = "without a project" if _session.project is None else f"for project {_session.project}"
            asked = "without one" if project is None else f"for project {project}"
            raise TracerError(
                f"a WeaveTracer {at_work} is at work in this process, and Weave has one client for all; give this one, "
                f"which is {asked}, the same, or use another process"
            )
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


def _connected(project: str, api_key: str | None) -> tuple[str, str, Forwarding]:
    key = api_key or private.known_key()
    if key is None:
        raise TracerError(f"calls are to go to project {project}, and there is no key; set WANDB_API_KEY, or api_key=")
    entity, _, name = project.partition("/")
    try:
        remote, name = private.connect(entity, name, key)
    except Exception as exc:
        # Not chained: the client's errors can quote the request, and that has the key.
        raise TracerError(
            f"Weave's service does not give access to project {project}: {type(exc).__name__}; see whether it can be "
            "reached, and whether the key is one of that entity, or work offline without a project"
        ) from None
    return entity, name, Forwarding(remote, private.flush)


def _init(client: Any) -> Any:
    def init_weave(project_name: str, *args: Any, **hooks: Any) -> Any:
        logger.info(
            "lightning.weave_init_skipped project=%s; a WeaveTracer is at work, and calls go where it sends them",
            project_name,
        )
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
