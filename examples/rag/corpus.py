"""The decisions of this project, cut into passages, and an index of vectors that finds those near to a query."""

import os
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import faiss
import numpy as np

FOLDER = Path(os.environ.get("AGL_RAG_CORPUS", Path(__file__).resolve().parents[2] / "docs" / "decisions"))
BUCKETS = 4096
DIMENSIONS = 64

Embed = Callable[[Sequence[str]], Any]
"""Texts in; out float32 [texts, dimensions], each row of length 1."""


def read_passages(folder: Path) -> list[str]:
    """Return the pages of a folder, two sentences a passage, each below the title of its page."""
    passages: list[str] = []
    for page in sorted(folder.glob("*.md")):
        title, *paragraphs = re.split(r"\n\s*\n", page.read_text(encoding="utf-8").strip())
        for paragraph in paragraphs:
            sentences = re.split(r"(?<=[.:])\s+", paragraph)
            pairs = [" ".join(sentences[at : at + 2]) for at in range(0, len(sentences), 2)]
            passages += [f"{title.lstrip('# ')}\n{' '.join(pair.split())}" for pair in pairs]
    if not passages:
        raise FileNotFoundError(f"there are no Markdown pages in {folder}; AGL_RAG_CORPUS names a folder that has some")
    return passages


PASSAGES = read_passages(FOLDER)  # here, so that a folder without pages is an error before anything runs


class LatentSemantics:
    """Embeds texts by the words and parts of words that they share: hashed counts, TF-IDF, and a truncated SVD.

    That is latent semantic analysis (Deerwester et al. 1990). Nothing is downloaded, and the same texts give the same
    vectors. It knows only what the corpus shows, so it finds no synonyms that never stand together there.
    """

    def __init__(self, corpus: Sequence[str]) -> None:
        counts = np.stack([_counts(text) for text in corpus])
        self._idf = np.log((1 + len(corpus)) / (1 + (counts > 0).sum(axis=0)))
        _, _, axes = np.linalg.svd(counts * self._idf, full_matrices=False)
        self._axes = axes[:DIMENSIONS].T

    def __call__(self, texts: Sequence[str]) -> Any:
        """Embed; see `Embed`. A text that shares nothing with the corpus is all zeros."""
        vectors = np.stack([_counts(text) for text in texts]) * self._idf @ self._axes
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        return (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)


def _counts(text: str) -> Any:
    """Count words and their three-letter parts, by hash, in float32 [BUCKETS]; many of a kind count little more."""
    words = [f"<{word}>" for word in re.findall(r"\w+", text.lower())]
    parts = [part for word in words for part in (word, *(word[at : at + 3] for at in range(len(word) - 2)))]
    found = np.bincount([zlib.crc32(part.encode()) % BUCKETS for part in parts], minlength=BUCKETS)
    return np.log1p(found).astype(np.float32)


class Index:
    """Passages, and a faiss index of their vectors."""

    def __init__(self, passages: Sequence[str], embed: Embed) -> None:
        self._passages, self._embed = passages, embed
        vectors = embed(passages)
        self._vectors = faiss.IndexFlatIP(vectors.shape[1])  # inner products of rows of length 1: cosines
        self._vectors.add(vectors)

    def search(self, query: str, count: int) -> list[str]:
        """Return the passages that are nearest to a query, the nearest first."""
        _, [nearest] = self._vectors.search(self._embed([query]), count)
        return [self._passages[at] for at in nearest if at >= 0]


@cache
def index() -> Index:
    """Return the index of the corpus. Put an embedding model in the place of `LatentSemantics` here."""
    return Index(PASSAGES, LatentSemantics(PASSAGES))
