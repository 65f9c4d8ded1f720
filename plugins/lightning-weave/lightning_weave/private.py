"""Everything that is used of Weave beyond its public interface, in one place, with a test for each.

Made for weave 0.54. Importing this module does not import Weave, which takes seconds.
"""

import asyncio
import atexit
import importlib
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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


def make_client(server: Any, entity: str, project: str, before: "WeaveClient | None" = None) -> "WeaveClient":
    """Make a client that calls its server at once, in the thread and the context of the traced call.

    Weave's own pool of threads would take the calls out of their order, and end them after the trace. Its write-ahead
    log would not call the server at all.

    Args:
        server: What it calls.
        entity: The entity that it names in its calls.
        project: The project.
        before: A client whose `HOOKS` it has, too.
    """
    from weave.trace.weave_client import WeaveClient

    hooks = {} if before is None else {name: getattr(before, name) for name in HOOKS}
    with environment(WEAVE_CLIENT_PARALLELISM="0", WEAVE_ENABLE_WAL="false"):
        return WeaveClient(entity, project, server, ensure_project_exists=False, **hooks)


def forget_client(client: "WeaveClient") -> None:
    """Let go of a client: its executors stay registered until the process ends."""
    for executor in (client.future_executor, client.future_executor_fastlane):
        if executor is not None:
            atexit.unregister(executor._shutdown)


def current_client() -> "WeaveClient | None":
    """Return the client that records this process's calls."""
    from weave.trace.context import weave_client_context

    return weave_client_context.get_weave_client()


def set_client(client: "WeaveClient | None") -> None:
    """Let this client record this process's calls, instead of any other."""
    from weave.trace.context import weave_client_context

    weave_client_context.set_weave_client_global(None)
    weave_client_context.set_weave_client_global(client)


def follow_calls(entered: "Callable[[Call], None]", left: Callable[[str], None]) -> Callable[[], None]:
    """Be told which call a context is in: a generator's is entered and left at each step.

    Args:
        entered: Called with a call when code inside of it goes on, in its context.
        left: Called with the id of a call when that code gives control back.

    Returns:
        What ends it.
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

    call_context.push_call, call_context.pop_call = push_and_tell, pop_and_tell

    def end() -> None:
        call_context.push_call, call_context.pop_call = push, pop

    return end


def end_cancelled_calls() -> Callable[[], None]:
    """Let the call of a coroutine that is cancelled end, as a failed one, and return what undoes that.

    Weave 0.54 leaves such a call open, and on top of the stack of the code that handles the cancellation.
    """
    from weave.trace import op as ops
    from weave.trace.context import call_context

    own = ops._call_async_func

    async def call(op: Any, *args: Any, **kwargs: Any) -> Any:
        before = {call.id for call in call_context.get_call_stack()}
        try:
            return await own(op, *args, **kwargs)
        except asyncio.CancelledError as exc:
            client = current_client()
            for opened in reversed(call_context.get_call_stack()):
                if client is not None and opened.id not in before:
                    client.finish_call(opened, exception=exc, op=op)
            raise

    ops._call_async_func = call

    def end() -> None:
        ops._call_async_func = own

    return end


def replace_init(
    init: "Callable[..., WeaveClient]", finish: Callable[[], None], use_settings: Callable[[Any], None]
) -> Callable[[], None]:
    """Decide what `weave.init` and `weave.finish` do, and return what puts them back.

    Args:
        init: Called with the project's name, which is empty where Weave is switched off, and the `HOOKS` by name.
        finish: Called instead of `weave.finish`.
        use_settings: Called with the argument `settings` of `weave.init`. Those of Weave are for the whole process, and
            one of them switches it off.
    """
    from weave.trace import api, weave_init

    def init_disabled(**hooks: Any) -> "WeaveClient":
        return init("", **hooks)

    replaced = (
        (weave_init, "init_weave", init),
        (weave_init, "finish", finish),
        (weave_init, "init_weave_disabled", init_disabled),
        (api, "replace_settings", use_settings),
    )
    own = [(module, name, getattr(module, name)) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)

    def end() -> None:
        for module, name, value in own:
            setattr(module, name, value)

    return end


def patch_libraries() -> None:
    """Let Weave trace the libraries that it knows: those that are imported, and those that will be."""
    from weave.integrations import patch

    # What its modules warn of when they are imported is Weave's business; as an error, it would cost the patch.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.implicit_patch()
    patch.register_import_hook()


def unpatch_libraries() -> None:
    """Undo what Weave has patched.

    Each patch is undone by itself: `MultiPatcher.undo_patch` of 0.54 leaves off at the first that was not made.
    """
    from weave.integrations import patch
    from weave.integrations.patcher import MultiPatcher, Patcher

    def undo(patcher: Patcher) -> None:
        if isinstance(patcher, MultiPatcher):
            for part in patcher.patchers:
                undo(part)
        else:
            patcher.undo_patch()

    patch.unregister_import_hook()
    for name, module in sys.modules.copy().items():  # in one go: other threads import, too
        if name.startswith("weave.integrations."):
            for value in list(vars(module).values()):
                if isinstance(value, Patcher):
                    undo(value)
    patch.reset_patched_integrations()


@cache
def server_methods() -> frozenset[str]:
    """Return what a client may ask of its server."""
    from weave.trace_server_bindings.client_interface import TraceServerClientInterface

    return frozenset(name for name in vars(TraceServerClientInterface) if not name.startswith("_"))


def object_digest(value: Any) -> str:
    """Return the digest that Weave's service gives to an object."""
    from weave.trace.serialization.digest import compute_object_digest

    return compute_object_digest(value)


def file_digest(content: bytes) -> str:
    """Return the digest that Weave's service gives to a file."""
    from weave.trace.serialization.digest import compute_file_digest

    return compute_file_digest(content)


def row_digests(rows: list[Any]) -> list[str]:
    """Return the digests that Weave's service gives to the rows of a table."""
    from weave.trace.serialization.digest import compute_row_digest

    return [compute_row_digest(row) for row in rows]


def table_digest(digests: list[str]) -> str:
    """Return the digest that Weave's service gives to a table of these rows."""
    from weave.trace.serialization.digest import compute_table_digest

    return compute_table_digest(digests)


def answer(kind: str, **fields: Any) -> Any:
    """Make an answer of Weave's service, such as `ObjectCreateResponse`."""
    from weave.vendor.weave_server_sdk import types

    return getattr(types, kind)(**fields)


def known_key() -> str | None:
    """Return the key of Weave's service that the environment, or the user's netrc, has."""
    from weave.trace.env import weave_wandb_api_key

    return weave_wandb_api_key()


def connect(entity: str, project: str, api_key: str) -> tuple[Any, str]:
    """Return a client of Weave's service, which sends calls in batches, and the project's name as the service has it.

    Waits for the service; raises whatever Weave raises when it cannot be reached, or refuses.
    """
    from weave.trace.weave_init import init_weave_get_server
    from weave.wandb_interface.auth import ApiKeyCredentials

    remote = init_weave_get_server(ApiKeyCredentials(api_key))
    for processor in _processors(remote):
        # `flush` does it, with a deadline; a process should not wait at its end for a service that hangs.
        atexit.unregister(processor.stop_accepting_new_work_and_flush_queue)
    try:
        # The project is made by W&B's other API, which takes the key from the environment; and it uses a GraphQL
        # client in a way that the latter warns of.
        with environment(WANDB_API_KEY=api_key), warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            found = remote.ensure_project_exists(entity, project)
    except BaseException:
        flush(remote)
        raise
    return remote, found.project_name


def flush(remote: Any) -> None:
    """Send what a client of Weave's service has not sent yet, and close it. Waits for the service."""
    try:
        for processor in _processors(remote):
            processor.stop_accepting_new_work_and_flush_queue()
    finally:
        remote._stainless_client.close()


def _processors(remote: Any) -> list[Any]:
    return [processor for processor in (remote.call_processor, remote.feedback_processor) if processor is not None]


def plain_settings() -> Mapping[str, str]:
    """Return the environment variables of Weave that make no sense without its service, and their values."""
    return {
        "WEAVE_PRINT_CALL_LINK": "false",  # links lead to the service
        "WEAVE_CAPTURE_CODE": "false",  # the source of an op would be published
        "WEAVE_USE_OTEL_V2": "false",  # agent frameworks would be told of to the service instead of the client
    }
