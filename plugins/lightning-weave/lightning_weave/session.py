"""What is turned on in the process while any tracer needs it: Weave has one client for all."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    """Weave at work in this process.

    Args:
        project: Where calls go besides, as `entity/project`; None for nowhere, unless `weave.init` was called before.
        api_key: The key of Weave's service; None for the one that the environment has.
        timeout_seconds: How long the end waits for the service.
    """

    def __init__(self, project: str | None, api_key: str | None, timeout_seconds: float) -> None:
        self.project = project
        """Where calls go besides; None for nowhere."""
        self.from_application = False
        """Whether it was `weave.init` that said so."""
        private.import_weave()
        if private.is_disabled():
            raise TracerError("WEAVE_DISABLED is set, so no call would be recorded; unset it")
        with ExitStack() as undo:
            before = private.current_client()
            entity, name = OFFLINE
            forwarding: Forwarding | None = None
            if before is not None:
                # A program that has called weave.init wants calls to go there, and they do.
                entity, name = before.entity, before.project
                if project not in (None, f"{entity}/{name}"):
                    raise TracerError(
                        f"weave.init() was called for project {entity}/{name}, and this tracer is for {project}; "
                        "leave one out"
                    )
                self.project, self.from_application = f"{entity}/{name}", True
                forwarding = Forwarding(before.server)
            elif project is not None:
                entity, name, forwarding = _connected(project, api_key)
            else:
                private.silence_error_reports()
                undo.enter_context(_defaults(private.plain_settings()))
            if forwarding is not None:
                undo.callback(forwarding.close, timeout_seconds)
            self.server = RecordingServer(forwarding)
            undo.callback(self.server.close)
            client = private.make_client(self.server, entity, name, before)
            undo.callback(private.forget_client, client)
            private.set_client(client)
            undo.callback(private.set_client, before)
            if before is None:
                undo.callback(private.unpatch_libraries)
                private.patch_libraries()
            undo.callback(private.follow_calls(self.server.entered, self.server.left))
            undo.callback(private.end_cancelled_calls())
            undo.callback(private.replace_init(_init(client, before), _finish, _use_settings()))
            self._undo = undo.pop_all()

    def close(self) -> None:
        """Put everything back as it was."""
        self._undo.close()


def acquire_session(project: str | None, api_key: str | None, timeout_seconds: float) -> Session:
    """Return the process's session; the first one to ask begins it.

    Raises:
        TracerError: When another tracer works with another project, or the session cannot begin.
    """
    global _session, _users
    with _lock:
        if _session is None:
            _session = Session(project, api_key, timeout_seconds)
        elif project != _session.project and not (project is None and _session.from_application):
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


def _init(client: Any, before: Any) -> Any:
    # What the application hides stays hidden: an agent adds to that, and replaces only what another agent has given.
    open_hooks = [name for name in private.HOOKS if not getattr(before, name, None)]

    def init_weave(project_name: str, *args: Any, **hooks: Any) -> Any:
        logger.info(
            "lightning.weave_init_skipped project=%s; a WeaveTracer is at work, and calls go where it sends them",
            project_name,
        )
        for name in private.HOOKS:
            if hooks.get(name):
                if name in open_hooks:
                    setattr(client, name, hooks[name])
                else:
                    logger.warning(
                        "lightning.weave_option_skipped name=%s; the program's own weave.init() has given it", name
                    )
        return client

    return init_weave


def _use_settings() -> Any:
    told: set[str] = set()

    def use_settings(settings: Any = None) -> None:
        given = settings if isinstance(settings, dict) else getattr(settings, "model_fields_set", ())
        new = {str(name) for name in given} - told
        if new:
            told.update(new)
            logger.warning(
                "lightning.weave_settings_skipped names=%s; they are for the whole process, where a WeaveTracer is at "
                "work: set the WEAVE_ variables of the environment before it",
                ",".join(sorted(new)),
            )

    return use_settings


def _finish() -> None:
    logger.info("lightning.weave_finish_skipped; the WeaveTracer that is at work ends with its run")


@contextmanager
def _defaults(variables: Any) -> Iterator[None]:
    """Set environment variables that are not set, for a block."""
    added = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name, value in added.items():
            if os.environ.get(name) == value:
                del os.environ[name]
