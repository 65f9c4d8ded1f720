"""What the core asks for when it meets what agentlightning 0.3 named or shaped otherwise; see `lightning_core.former`.

Each function is imported when it is first used.
"""

import lazy_loader  # type: ignore[import-untyped]  # py.typed is missing there

__getattr__, __dir__, __all__ = lazy_loader.attach(
    "lightning_legacy",
    submod_attrs={
        "modules": ["find_module", "find_name"],
        "stores": ["adapt"],
        "strategies": ["execute"],
        "tracers": ["ForeignTrace"],
        "trees": ["draw"],
    },
)
