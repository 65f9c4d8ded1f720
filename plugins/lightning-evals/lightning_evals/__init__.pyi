from .agreement import (
    LabelAgreement as LabelAgreement,
)
from .evaluation import (
    Evaluate as Evaluate,
    Evaluation as Evaluation,
    SampleTrials as SampleTrials,
    Trial as Trial,
)
from .gate import (
    Gate as Gate,
    GateResult as GateResult,
)
from .judge import (
    Judge as Judge,
)

__all__ = [
    "Evaluate",
    "Evaluation",
    "Gate",
    "GateResult",
    "Judge",
    "LabelAgreement",
    "SampleTrials",
    "Trial",
]
