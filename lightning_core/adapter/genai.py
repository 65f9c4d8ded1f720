"""The names under which model calls are recorded, by whatever source, in one place.

A source of our own writes the names of OpenTelemetry's GenAI conventions, and for the engine's tokens
`PROMPT_TOKEN_IDS`, `RESPONSE_TOKEN_IDS` and `RESPONSE_LOGPROBS`.
"""

from lightning_core.semconv import LightningSpanAttributes

# What the engine saw and produced.
PROMPT_TOKEN_IDS = "prompt_token_ids"
"""The prompt's token ids: a list of integers."""
RESPONSE_TOKEN_IDS = "response_token_ids"
"""The answer's token ids: a list of integers, or one such list for each choice."""
RESPONSE_LOGPROBS = "response_logprobs"
"""The log-probability of each token of the answer: a list of numbers, or one such list for each choice."""
LOGPROBS_CONTENT = "logprobs.content"
"""The same for the first choice, as OpenAI's API gives it: JSON of a list of objects with `logprob`."""

# OpenTelemetry's GenAI conventions.
OPERATION_NAME = "gen_ai.operation.name"
INFERENCE_OPERATIONS = frozenset({"chat", "completion", "generate_content", "responses", "text_completion"})
"""The values of `OPERATION_NAME` that mean a model call; others are agents, tools and embeddings."""
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
FINISH_REASONS = "gen_ai.response.finish_reasons"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
SYSTEM_INSTRUCTIONS = "gen_ai.system_instructions"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
COST = "gen_ai.usage.cost"
"""In US dollars."""
AGENT_NAME = "gen_ai.agent.name"
TOOL_NAME = "gen_ai.tool.name"
TOOL_CALL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT = "gen_ai.tool.call.result"
EVALUATION_EVENT = "gen_ai.evaluation.result"
EVALUATION_NAME = "gen_ai.evaluation.name"
EVALUATION_VALUE = "gen_ai.evaluation.score.value"
ERROR_TYPE = "error.type"
BUDGET_EXHAUSTED = "budget_exhausted"
"""The value of `ERROR_TYPE` for a call that a budget kept from starting."""
ATTEMPT_LIMIT = "attempt_limit_reached"
"""The value of `ERROR_TYPE` for a call that the limits of its attempt kept from starting."""
REFUSED = frozenset({BUDGET_EXHAUSTED, ATTEMPT_LIMIT})
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 529})
"""HTTP statuses of a model that did not answer now, and may do so later."""
BACKEND_FAILED = frozenset(
    {"backend_unavailable", "backend_broke", "backend_garbage", "backend_timeout", *map(str, TRANSIENT_STATUSES)}
)
"""The values of `ERROR_TYPE` for a call that the proxy got no answer to: the model's server is out of reach, too slow
or too busy, broke off, or answered something else."""
PURPOSE = "agentlightning.call.purpose"
"""What a call was for, where it is not one of the agent's own. Such a call counts, but is not training data."""
PROXY_SERVICE = "lightning-proxy"
"""The `service.name` of the resource that the proxy's spans are of."""
JUDGE = "judge"
"""The purpose of what a grader asks a model."""
CONTENT_EVENT = "gen_ai.client.inference.operation.details"
"""The event whose attributes are as if the span had them: the messages, where the span has none."""

# AgentOps and Traceloop, and so the spans of agentlightning 0.3.
PROMPT = "gen_ai.prompt"
"""Prefix of the request's messages: `gen_ai.prompt.0.role`, `gen_ai.prompt.0.content`, ..."""
COMPLETION = "gen_ai.completion"
"""Prefix of the choices: `gen_ai.completion.0.content`, `gen_ai.completion.0.tool_calls.0.name`, ..."""
REQUEST_TYPES = ("gen_ai.request.type", "llm.request.type")

# OpenInference, the names of Arize's instrumentors and of Phoenix.
OPENINFERENCE_KIND = "openinference.span.kind"
"""What a span is of: `LLM`, `TOOL`, `AGENT` and others."""
OPENINFERENCE_INPUT = "llm.input_messages"
"""Prefix of the request's messages: `llm.input_messages.0.message.role`, ..."""
OPENINFERENCE_OUTPUT = "llm.output_messages"
"""Prefix of the answers: `llm.output_messages.0.message.content`, ..."""
OPENINFERENCE_TOOLS = "llm.tools"
"""Prefix of the tools: `llm.tools.0.tool.json_schema`, ..."""
OPENINFERENCE_FINISH_REASON = "llm.finish_reason"

# Weave, as agentlightning 0.3 records it.
OPERATION_INPUT = LightningSpanAttributes.OPERATION_INPUT.value
"""Prefix of the request, as its JSON would be: `agentlightning.operation.input.messages.0.role`, ..."""
OPERATION_OUTPUT = LightningSpanAttributes.OPERATION_OUTPUT.value
"""Prefix of the response, as its JSON would be: `agentlightning.operation.output.choices.0.finish_reason`, ..."""
OUTPUT_ID = f"{OPERATION_OUTPUT}.id"
OUTPUT_MODEL = f"{OPERATION_OUTPUT}.model"
OUTPUT_CHOICES = f"{OPERATION_OUTPUT}.choices"
OUTPUT_PROMPT_TOKEN_IDS = f"{OPERATION_OUTPUT}.{PROMPT_TOKEN_IDS}"
INPUT_CHAT = f"{OPERATION_INPUT}.messages"
INPUT_TOOLS = f"{OPERATION_INPUT}.tools"

CHAT_CALL_NAME = "openai.chat.completion"
"""The name that AgentOps gives to the span of a chat call."""
