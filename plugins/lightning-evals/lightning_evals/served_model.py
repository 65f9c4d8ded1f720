"""Evaluates a model that vLLM serves while that lasts."""

from collections.abc import Sequence
from typing import Any

from pydantic import PositiveInt

from lightning_core.errors import ConfigError, InvalidInput
from lightning_core.types import LLM, Dataset, RolloutMode
from lightning_evals.evaluation import Evaluate


class EvaluateModel(Evaluate):
    """`Evaluate` with a trained model, which vLLM serves while that lasts, in the place of one of the proxy's.

    Args:
        model: A folder, such as `agl export RUN --to model` writes, or a name at Hugging Face.
        replaces: The name in the proxy's model_list whose place it takes; None where there is only one. The others,
            such as a judge's, stay.
        arguments: vLLM's own.
        python: The interpreter of the environment that vLLM is installed in; None for this one.
        repeat: As with `Evaluate`, as what follows.
    """

    def __init__(
        self,
        *,
        model: str,
        replaces: str | None = None,
        arguments: Sequence[str] = (),
        python: str | None = None,
        repeat: PositiveInt = 1,
        max_samples: PositiveInt | None = None,
        pass_at: float = 1.0,
        mode: RolloutMode = "test",
    ) -> None:
        super().__init__(repeat=repeat, max_samples=max_samples, pass_at=pass_at, mode=mode)
        self.model = model
        self.replaces = replaces
        self.arguments = arguments
        self.python = python

    async def run(self, train_dataset: Dataset[Any] | None = None, val_dataset: Dataset[Any] | None = None) -> None:
        """Serve, and evaluate.

        Raises:
            ConfigError: When lightning-tokens is not installed.
            InvalidInput: When it is not clear whose place the model takes, or agents call one past the proxy.
            VLLMFailed: When vLLM does not start.
        """
        try:
            from lightning_proxy import LLMProxy
            from lightning_tokens.vllm.server import VLLMServer
        except ImportError as exc:
            raise ConfigError(
                "a model is served with lightning-tokens, which is not installed: from a checkout of Lightning Core, "
                "pip install . ./plugins/lightning-{http,proxy,tokens}"
            ) from exc
        proxy = self.get_llm_proxy()
        if not isinstance(proxy, LLMProxy) or not proxy.model_list:
            raise InvalidInput(
                "the model takes the place of one of the proxy, and there is none; give llm_proxy a model_list with "
                "the name that the agent asks for"
            )
        names = proxy.models()
        name = names[0] if self.replaces is None else self.replaces
        if name not in names or (self.replaces is None and len(names) > 1):
            raise InvalidInput(
                f"the model takes the place of one of {', '.join(names)}; say which with --as NAME, or with replaces "
                f"from Python; got {self.replaces!r}"
            )
        past = [name for name, each in (self.get_initial_resources() or {}).items() if type(each) is LLM]
        if past:
            raise InvalidInput(f"initial_resources: the calls of {past[0]!r} do not go through the proxy; leave it out")
        async with VLLMServer(self.model, arguments=self.arguments, python=self.python) as server:
            before = list(proxy.model_list)
            others = [each for each in before if each["model_name"] != name]
            proxy.update_model_list([*others, server.model_config(name)])
            try:
                await super().run(train_dataset, val_dataset)
            finally:
                proxy.update_model_list(before)
