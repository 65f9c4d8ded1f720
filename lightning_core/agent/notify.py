"""A file that tells a service where the model is, as verl's recipe for agents that are services has it."""

import os
import uuid
from pathlib import Path
from urllib.parse import urlsplit

from lightning_core.errors import Fault, InvalidAgent
from lightning_core.types import LLM

NOTIFY_VARIABLE = "LLM_SERVER_NOTIFY_FILE"


class NotifyFile:
    """Holds `host:port` of the model's server on its first line; the service asks `http://host:port/v1`.

    Args:
        path: Where it is: a folder that the service sees, too.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def tell(self, llm: LLM) -> None:
        """Write where a model is, unless it stands there. Whoever reads at the same time sees the old line or the new.

        Args:
            llm: The resource as the rollout has it, not that of one attempt: the file is the same for all of them.

        Raises:
            InvalidAgent: When that is no `http://host:port/v1`.
            Fault: When the file cannot be written.
        """
        parts = urlsplit(llm.endpoint)
        if parts.scheme != "http" or not parts.netloc or parts.path.rstrip("/") != "/v1" or parts.username:
            raise InvalidAgent(
                f"the notify file {self.path} tells a service host:port alone, of http://host:port/v1; "
                f"the endpoint {llm.endpoint!r} cannot be told so"
            )
        path = Path(self.path)
        try:
            if path.is_file() and path.read_text(encoding="utf-8").splitlines()[:1] == [parts.netloc]:
                return
            new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
            new.write_text(parts.netloc + "\n", encoding="utf-8")
            os.replace(new, path)
        except OSError as exc:
            raise Fault(f"the notify file {self.path} cannot be written: {exc}") from exc
