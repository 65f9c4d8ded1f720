"""Where every request comes in."""

import asyncio
import logging
from collections.abc import MutableMapping
from typing import Any

from lightning_core.errors import AccessDenied, LightningError, StoreUnavailable
from lightning_core.proxy.control import Control
from lightning_core.proxy.engine import Engine
from lightning_core.proxy.exchange import Exchange, Receive, Send
from lightning_core.proxy.owner import Addressed, Attribution, Owner, read_path
from lightning_core.proxy.paths import PREFIX
from lightning_core.proxy.refusals import Refused, proxy_stopped
from lightning_core.store.http.auth import Role
from lightning_core.store.http.body import ClientGone
from lightning_core.store.http.web_pages import OtherSite, require_local, require_same_site

logger = logging.getLogger(__name__)

HEALTH_PATH = "/health"


class ProxyApp:
    """The ASGI application of one proxy.

    Args:
        engine: What answers model calls.
        control: What steers the proxy.
        attribution: Who calls, and for whom.
        run_id: The proxy's own run; None without a store.
        local_only: Whether only this machine is meant to call, without a key: then a page in a browser must not be
            talked into calling under another name.
        stall_seconds: How long an agent may take none of its answer.
    """

    def __init__(
        self,
        engine: Engine,
        control: Control,
        attribution: Attribution,
        *,
        run_id: str | None,
        local_only: bool,
        stall_seconds: float,
    ) -> None:
        self._engine = engine
        self._control = control
        self._attribution = attribution
        self._run_id = run_id
        self._local_only = local_only
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            return
        exchange = Exchange(scope, receive, send, stall_seconds=self._stall_seconds)
        addressed = read_path(exchange.path)
        try:
            await self._serve(exchange, addressed)
        except Refused as refused:
            await self._refuse(exchange, refused, addressed)
        except ClientGone:
            return
        except asyncio.CancelledError:  # by the server, which stops
            exchange.hurry()
            await self._refuse(exchange, proxy_stopped(), addressed)
        except StoreUnavailable as exc:
            await self._refuse(exchange, Refused(503, "store_unavailable", str(exc), retry_after=1.0), addressed)
        except LightningError as exc:
            await self._refuse(exchange, Refused(500, "proxy_error", str(exc)), addressed)
        except Exception:
            logger.exception("lightning.proxy_request_failed path=%s", exchange.path)
            unexpected = Refused(500, "proxy_error", "the proxy failed; its log says why")
            await self._refuse(exchange, unexpected, addressed)

    async def _serve(self, exchange: Exchange, addressed: Addressed) -> None:
        try:
            if self._local_only:
                require_local(exchange.headers)
            require_same_site(exchange.method, exchange.headers)
        except OtherSite as exc:
            raise Refused(403, "other_site", str(exc)) from exc
        except AccessDenied as exc:
            raise Refused(403, "not_local", str(exc)) from exc
        if addressed.path == HEALTH_PATH and addressed.rollout_id is None:
            await exchange.answer_json(200, {"status": "ok"})
            return
        who = self._attribution.identify(exchange.headers)
        owner = self._attribution.owner(addressed, exchange.headers, who)
        if owner is not None:
            owner = None if self._run_id is None else self._of_own_run(owner)
        path = addressed.path if addressed.path != PREFIX else f"{PREFIX}/"
        if not await self._control.serve(exchange, path, owner, who.role):
            has_key = who.role == Role.ATTEMPT
            may_manage = who.role >= Role.ALGORITHM and not self._local_only
            await self._engine.serve(
                exchange, path, owner, has_key=has_key, may_manage=may_manage, purpose=addressed.purpose
            )

    def _of_own_run(self, owner: Owner) -> Owner:
        return owner if owner.run_id != self._run_id else Owner(None, owner.rollout_id, owner.attempt_id)

    async def _refuse(self, exchange: Exchange, refused: Refused, addressed: Addressed) -> None:
        if exchange.status == 0:
            await self._engine.refuse(exchange, refused, addressed.path)
