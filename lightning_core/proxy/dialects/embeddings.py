"""OpenAI's embeddings API: `/v1/embeddings`."""

from lightning_core.proxy.answer import Answer, failure_of, text_of
from lightning_core.proxy.dialects.base import Assembler, Dialect, Fields
from lightning_core.proxy.dialects.openai_tokens import read_usage
from lightning_core.proxy.sse import ServerEvent


class EmbeddingsDialect(Dialect):
    """Texts in, vectors out. What is recorded is the usage: nothing is learned from a vector."""

    operation = "embeddings"

    def read(self, answer: Fields) -> Answer:
        found = Answer(id=text_of(answer.get("id")), model=text_of(answer.get("model")))
        read_usage(found, answer.get("usage"))
        found.output_tokens = 0
        found.failure = failure_of(answer.get("error"))
        return found

    def assembler(self) -> Assembler:
        return _NeverStreamed()


class _NeverStreamed(Assembler):
    def feed(self, event: ServerEvent, fields: Fields | None) -> None:
        """Keep nothing: this API does not stream."""
