"""Everything that is used of Weave beyond its public interface, in one place, with a test for each.

Made for weave 0.54. Importing this module does not import Weave, which takes seconds.
"""

import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weave.trace.call import Call
    from weave.trace.weave_client import WeaveClient

_environment_lock = threading.RLock()


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set environment variables for a block, and put back what they were."""
    with _environment_lock:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value


def import_weave() -> None:
    """Import Weave without its error reports: it would open a session with sentry.io, and close it at exit."""
    if "weave" not in sys.modules:
        with environment(WANDB_ERROR_REPORTING="false"):
            importlib.import_module("weave")


def silence_error_reports() -> None:
    """Send no error reports from now on, not even the end of a session that was opened at Weave's import."""
    from weave.telemetry import trace_sentry

    trace_sentry.global_trace_sentry._disabled = True


def is_disabled() -> bool:
    """Tell whether the environment has switched Weave off."""
    from weave.trace.settings import should_disable_weave

    return should_disable_weave()


HOOKS = ("postprocess_inputs", "postprocess_output", "attributes")
"""What `weave.init` takes for all calls, and its client has under the same names: perhaps what hides secrets."""


def make_client(server: Any, entity: str, project: str) -> "WeaveClient":
    """Make a client that calls its server at once, in the thread and the context of the traced call.

    Weave's own pool of threads would take the calls out of their order, and end them after the trace. Its write-ahead
    log would not call the server at all.
    """
    from weave.trace.weave_client import WeaveClient

    with environment(WEAVE_CLIENT_PARALLELISM="0", WEAVE_ENABLE_WAL="false"):
        return WeaveClient(entity, project, server, ensure_project_exists=False)


def current_client() -> "WeaveClient | None":
    """Return the client that records this process's calls."""
    from weave.trace.context import weave_client_context

    return weave_client_context.get_weave_client()


def set_client(client: "WeaveClient | None") -> None:
    """Let this client record this process's calls, instead of any other."""
    from weave.trace.context import weave_client_context

    weave_client_context.set_weave_client_global(None)
    weave_client_context.set_weave_client_global(client)


@contextmanager
def replaced(*replacements: tuple[Any, str, Any]) -> Iterator[None]:
    """Replace names of modules for a block: module, name, value."""
    originals = [(module, name, getattr(module, name)) for module, name, _ in replacements]
    for module, name, value in replacements:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in originals:
            setattr(module, name, value)


def follow_calls(entered: "Callable[[Call], None]", left: Callable[[str], None]) -> AbstractContextManager[None]:
    """Be told for a block which call a context is in: a generator's is entered and left at each step.

    Args:
        entered: Called with a call when code inside of it goes on, in its context.
        left: Called with the id of a call when that code gives control back.
    """
    from weave.trace.context import call_context

    push, pop = call_context.push_call, call_context.pop_call

    def push_and_tell(call: "Call") -> None:
        push(call)
        entered(call)

    def pop_and_tell(call_id: str | None) -> None:
        pop(call_id)
        if call_id is not None:
            left(call_id)

    return replaced((call_context, "push_call", push_and_tell), (call_context, "pop_call", pop_and_tell))


def replace_init(
    init: "Callable[..., WeaveClient]", finish: Callable[[], None], use_settings: Callable[[Any], None]
) -> AbstractContextManager[None]:
    """Decide for a block what `weave.init` and `weave.finish` do.

    Args:
        init: Called with the project's name, which is empty where Weave is switched off, and the `HOOKS` by name.
        finish: Called instead of `weave.finish`.
        use_settings: Called with the argument `settings` of `weave.init`. Those of Weave are for the whole process, and
            one of them switches it off.
    """
    from weave.trace import api, weave_init

    def init_disabled(**hooks: Any) -> "WeaveClient":
        return init("", **hooks)

    return replaced(
        (weave_init, "init_weave", init),
        (weave_init, "finish", finish),
        (weave_init, "init_weave_disabled", init_disabled),
        (api, "replace_settings", use_settings),
    )


@cache
def patch_libraries() -> None:
    """Let Weave trace the libraries that it knows, from now on: those that are imported, and those that will be."""
    from weave.integrations import patch

    # What its modules warn of when they are imported is Weave's business; as an error, it would cost the patch.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.implicit_patch()
    patch.register_import_hook()


@cache
def server_methods() -> frozenset[str]:
    """Return what a client may ask of its server."""
    from weave.trace_server_bindings.client_interface import TraceServerClientInterface

    return frozenset(name for name in vars(TraceServerClientInterface) if not name.startswith("_"))


def digests() -> Any:
    """Return Weave's module of the digests that its service gives."""
    from weave.trace.serialization import digest

    return digest


def answer(kind: str, **fields: Any) -> Any:
    """Make an answer of Weave's service, such as `ObjectCreateResponse`."""
    from weave.vendor.weave_server_sdk import types

    return getattr(types, kind)(**fields)


PLAIN_SETTINGS = {
    "WEAVE_PRINT_CALL_LINK": "false",  # links lead to the service
    "WEAVE_CAPTURE_CODE": "false",  # the source of an op would be published
    "WEAVE_USE_OTEL_V2": "false",  # agent frameworks would be told of to the service instead of the client
}
"""Environment variables of Weave that make no sense without its service, and their values."""
