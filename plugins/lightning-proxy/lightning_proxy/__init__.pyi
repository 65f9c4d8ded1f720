from .backend import (
    Backend as Backend,
    BackendAnswer as BackendAnswer,
    BackendRequest as BackendRequest,
)
from .limiter import (
    Drained as Drained,
)
from .llm_proxy import (
    LLMProxy as LLMProxy,
)
from .model_list import (
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
]
