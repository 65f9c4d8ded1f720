"""Questions about the decisions of this project, each with its answer as it stands there."""

import random
from typing import TypedDict


class Question(TypedDict):
    """One sample."""

    question: str
    answer: str


_PAIRS = (
    ("Which class implements the whole LightningStore interface?", "StoreFacade"),
    ("How many operations does a store's backend implement?", "20"),
    (
        "Which package carries the context into threads, timers and thread pools?",
        "opentelemetry-instrumentation-threading",
    ),
    ("Where does the active trace live?", "OpenTelemetry context"),
    ("When does the task that sleeps until the next deadline end?", "with the last wait"),
    ("After how long is an agent that ignores cancellation abandoned?", "a second"),
    ("How many tasks do 256 runners cost?", "256"),
    ("Within what time does Ctrl-C end a run of the local strategy?", "two seconds"),
    ("At which version do our versions start?", "1.0.0"),
    ("With what do the names of environment variables start?", "AGL_"),
    ("Which library of compression takes the large spans of the SQLite store?", "zlib"),
    ("What names the owner of an open SQLite store?", "a note beside the file"),
    ("Which setting makes commits survive a power cut?", 'durability="power"'),
    ("How long does a call from an event loop into another thread take?", "0.1 ms"),
    ("Which driver for MongoDB reached its end of life in May 2026?", "Motor"),
    ("How many claims a second does pymongo's own client take?", "1,185"),
    ("What reports the writes of others in the MongoDB store?", "change stream"),
    ("How soon are deadlines seen that others write into MongoDB?", "a quarter of a second"),
    ("In which distribution is the model proxy?", "lightning-proxy"),
    ("By which interface does the core know a proxy?", "ModelProxy"),
    ("By what are names imported when they are first used?", "lazy_loader"),
    ("What holds the layers of the core, type-only imports included?", "import-linter"),
    ("Into which file can a run be looked as one HTML file?", "report.html"),
    ("With which libraries is the client of the report written?", "Preact and htm"),
    ("Up to how many traces does the report hold?", "200"),
    ("What are the charts of the report drawn as?", "SVG"),
    ("With what are server-sent events read, since EventSource cannot send a key?", "fetch"),
    ("Who can read the file of the report?", "only its owner"),
)
QUESTIONS: tuple[Question, ...] = tuple({"question": question, "answer": answer} for question, answer in _PAIRS)
_SHUFFLED = random.Random(3).sample(QUESTIONS, len(QUESTIONS))


def train() -> list[Question]:
    """Return the questions to learn from."""
    return _SHUFFLED[:8]


def val() -> list[Question]:
    """Return the questions to choose prompts by."""
    return _SHUFFLED[8:]


def same_answer(answer: str, right: str) -> bool:
    """Whether two answers are the same but for case, articles, and punctuation around words."""
    return _plain(answer) == _plain(right)


def _plain(text: str) -> list[str]:
    words = [word.strip(".,;:!?`'\"*()") for word in text.lower().split()]
    return [word for word in words if word not in ("", "a", "an", "the")]
