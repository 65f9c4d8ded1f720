from .admit import (
    Drained as Drained,
)
from .backend import (
    Backend as Backend,
    BackendAnswer as BackendAnswer,
    BackendRequest as BackendRequest,
    TokenCounts as TokenCounts,
)
from .llm_proxy import (
    LLMProxy as LLMProxy,
)
from .models import (
    ModelConfig as ModelConfig,
)
from .remote import (
    RemoteProxy as RemoteProxy,
)

__all__ = [
    "Backend",
    "BackendAnswer",
    "BackendRequest",
    "Drained",
    "LLMProxy",
    "ModelConfig",
    "RemoteProxy",
    "TokenCounts",
]
