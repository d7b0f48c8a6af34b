"""From documents to token blocks, exactly as the upstreams make them with one process.

Their dataset function encodes each document without special tokens, ends it with the boundary
token, joins every 1000 documents, cuts the join into pieces of ``length - 2`` tokens, encloses each
piece in boundary tokens, and drops what is left of each thousand. With more processes they cut
other thousands; ours do not depend on the number of cores.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dlbhpc.data.manifest import ManifestError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray
    from tokenizers import Tokenizer

DOCUMENTS_PER_GROUP = 1000
"""Documents that are joined: the default batch of ``datasets.map``, which the upstreams take."""


@functools.lru_cache(maxsize=1)
def load_tokenizer(snapshot: Path, padding: str) -> Tokenizer:
    """The tokenizer of a snapshot, as the upstreams have it: with a padding token.

    Where its vocabulary has none, a text that spells ``padding`` becomes the token they add.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(snapshot / "tokenizer.json"))
    except Exception as error:  # the library raises Exception itself
        raise ManifestError(f"the tokenizer {snapshot} cannot be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tokenizer.add_special_tokens([padding])
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str, snapshot: Path) -> int:
    """The id of a token. Raises ManifestError when the vocabulary has none."""
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise ManifestError(f"the tokenizer {snapshot} has no token {token!r}")
    return found


def encode(tokenizer: Tokenizer, documents: list[str]) -> list[list[int]]:
    """Token ids of each document, without special tokens."""
    return [e.ids for e in tokenizer.encode_batch_fast(documents, add_special_tokens=False)]


def wrap(documents: Sequence[Sequence[int]], length: int, boundary: int) -> NDArray[numpy.int32]:
    """Blocks (n, length) of encoded documents that are joined and cut; the remainder is dropped."""
    import numpy

    size = sum(len(document) + 1 for document in documents)
    ended = itertools.chain.from_iterable((*document, boundary) for document in documents)
    joined = numpy.fromiter(ended, numpy.int32, size)
    inner = length - 2
    count = size // inner
    blocks = numpy.full((count, length), boundary, numpy.int32)
    blocks[:, 1:-1] = joined[: count * inner].reshape(count, inner)
    return blocks


def blocks_of(
    documents: Iterable[str], tokenizer: Tokenizer, length: int, boundary: int
) -> Iterator[NDArray[numpy.int32]]:
    """Blocks of a stream of documents, group by group."""
    stream = iter(documents)
    while group := list(itertools.islice(stream, DOCUMENTS_PER_GROUP)):
        yield wrap(encode(tokenizer, group), length, boundary)
