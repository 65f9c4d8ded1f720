"""Steering a proxy over HTTP: by the runner of an attempt, and by the algorithm."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs

from lightning_core.errors import ConfigError, RegistryError
from lightning_core.proxy.exchange import Exchange
from lightning_core.proxy.jsons import parse_object
from lightning_core.proxy.owner import Owner
from lightning_core.proxy.refusals import Refused
from lightning_core.proxy.reports import REPORT_PATH, Reports
from lightning_core.proxy.steering import Steering
from lightning_core.store.http.auth import Role
from lightning_core.store.http.body import ClientGone

FLUSH_PATH = "/flush"
BIND_PATH = "/bind"
CONTROL_PREFIX = "/control/"

MAX_WAIT_SECONDS = 60
"""How long a question may wait for its answer."""

_MAX_BODY_BYTES = 1024 * 1024


class Control:
    """What a proxy does besides model calls.

    - `POST /rollout/{rollout_id}/attempt/{attempt_id}/flush`: answers when the store has the attempt's calls; also with
      the attempt's own key, as runners do;
    - `POST /rollout/{rollout_id}/attempt/{attempt_id}/bind` `{"value": ...}`: lets a value stand for the attempt;
      not with an attempt's key, which could take over the calls of others;
    - `POST /rollout/{rollout_id}/attempt/{attempt_id}/report`: a reward or an annotation; see `Reports`;
    - `POST /control/pause` `{"seconds": ...}`, `resume`, `drain` `{"timeout": ...}`, `weights`, `model_list` and
      `GET /control/status`: with the algorithm's key only. A proxy without keys, which answers to its own machine, says
      how it stands, and is steered in its own process alone;
    - `GET /control/budget?refusals=N&seconds=S`, likewise: answers how the budget stands as soon as it has refused more
      than N calls, or after S seconds.

    Args:
        steering: What is steered.
        reports: Takes what attempts say of themselves.
        has_keys: Whether callers say who they are.
    """

    def __init__(self, steering: Steering, reports: Reports, *, has_keys: bool) -> None:
        self._steering = steering
        self._reports = reports
        self._has_keys = has_keys

    async def serve(self, exchange: Exchange, path: str, owner: Owner | None, role: Role) -> bool:
        """Answer a request that is for here; return whether it was.

        Raises:
            Refused: When the caller may not, or asks for what there is not.
        """
        if exchange.method == "POST" and path == REPORT_PATH:
            await self._reports.take(exchange, owner, has_key=role == Role.ATTEMPT)
            return True
        if exchange.method == "POST" and path in (FLUSH_PATH, BIND_PATH) and owner is not None:
            if path == BIND_PATH and role <= Role.ATTEMPT:
                raise Refused(403, "not_allowed", "an attempt's key cannot say what stands for an attempt")
            fields = await self._fields(exchange)
            if path == FLUSH_PATH:
                await self._steering.flush(owner, end=fields.get("end") is not False)
            else:
                await self._steering.bind(_text(fields, "value"), owner)
            await exchange.answer(204, b"", ())
            return True
        if not path.startswith(CONTROL_PREFIX):
            return False
        is_question = exchange.method == "GET" and path.removeprefix(CONTROL_PREFIX) in _QUESTIONS
        if (not self._has_keys and not is_question) or role < Role.ALGORITHM:
            why = "the proxy has no key" if not self._has_keys else "this key is not the algorithm's"
            raise Refused(403, "not_allowed", f"{why}, so it cannot be steered over HTTP")
        await exchange.answer_json(200, await self._steer(exchange, path.removeprefix(CONTROL_PREFIX)))
        return True

    async def _steer(self, exchange: Exchange, what: str) -> Mapping[str, Any]:
        steering = self._steering
        if (exchange.method, what) == ("GET", "status"):
            return await steering.status()
        if (exchange.method, what) == ("GET", "budget"):
            return {"budget": await self._budget(exchange)}
        if exchange.method == "POST" and what in _ACTIONS:
            fields = await self._fields(exchange)
            if what == "pause":
                await steering.pause(_seconds(fields, "seconds"))
            elif what == "resume":
                await steering.resume()
            elif what == "drain":
                drained = await steering.drain(_seconds(fields, "timeout"))
                return {"finished": drained.finished, "aborted": drained.aborted}
            elif what == "weights":
                await steering.set_weight_version(_text(fields, "version"))
            else:
                await self._update(fields.get("model_list"))
            return await steering.status()
        raise Refused(404, "unknown_path", f"there is no {exchange.method} {exchange.path}")

    async def _budget(self, exchange: Exchange) -> Mapping[str, Any] | None:
        asked = parse_qs(exchange.query)
        refusals = _number(asked, "refusals", -1)
        seconds = min(_number(asked, "seconds", 0), MAX_WAIT_SECONDS)
        answer = asyncio.ensure_future(self._steering.budget_beyond(refusals, seconds))
        gone = asyncio.ensure_future(exchange.gone())
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise ClientGone
            return answer.result()
        finally:
            answer.cancel()
            gone.cancel()
            await asyncio.wait((answer, gone))

    async def _update(self, model_list: Any) -> None:
        if not isinstance(model_list, list):
            raise Refused(400, "invalid_request", "model_list is missing, or no list")
        if any(isinstance(entry, dict) and "backend" in entry for entry in model_list):
            raise Refused(400, "invalid_request", "a backend cannot be chosen over HTTP; litellm_params alone")
        try:
            await self._steering.update_model_list(model_list)
        except (ConfigError, RegistryError) as exc:
            raise Refused(400, "invalid_request", str(exc)) from exc

    async def _fields(self, exchange: Exchange) -> dict[str, Any]:
        body = await exchange.body(_MAX_BODY_BYTES)
        fields = parse_object(body) if body else {}
        if fields is None:
            raise Refused(400, "invalid_json", "the request's body is no JSON object")
        return fields


_QUESTIONS = frozenset({"status", "budget"})
_ACTIONS = frozenset({"pause", "resume", "drain", "weights", "model_list"})


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise Refused(400, "invalid_request", f"{name} is {value!r}; it is a text")
    return value


def _number(asked: Mapping[str, Sequence[str]], name: str, default: int) -> int:
    given = asked.get(name, [""])[-1]
    if given and not given.isdecimal():
        raise Refused(400, "invalid_request", f"{name} is {given!r}; it is a whole number from 0 on")
    return int(given) if given else default


def _seconds(fields: Mapping[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf
    ):
        raise Refused(400, "invalid_request", f"{name} is {value!r}; it is a number of seconds")
    return value
