from .client import (
    LightningStoreClient as LightningStoreClient,
)
from .server import (
    LightningStoreServer as LightningStoreServer,
)

__all__ = [
    "LightningStoreClient",
    "LightningStoreServer",
]
