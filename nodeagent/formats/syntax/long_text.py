"""Long texts assembled from the pods of a state, pod by pod: pieces that are joined once, at the end.

A state differs from the previous one in one pod, so nearly all pieces are cached (core/model/podmap.py), and nothing long is copied except
for the result.
"""

from collections.abc import Callable

from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import PodPromises
from nodeagent.formats.syntax.fnv import Piece

_PIECE = 2048
"""Two neighbouring pieces are joined up to this many characters; longer texts remain lists of pieces."""

Pieces = tuple[tuple[str, ...], tuple[Piece, ...]]
"""Of the file and of the text that is hashed: entries in order; joined by a comma in the former, by a blank in the latter."""

NO_PIECES: Pieces = ((), ())


def pieces_of(entry: Callable[[str, PodPromises], tuple[str, str] | None]) -> Fold[PodPromises, Pieces]:
    """Create the fold that collects the entries of all pods; `entry` returns None for a pod without one."""

    def leaf(uid: str, pod: PodPromises) -> Pieces:
        found = entry(uid, pod)
        return NO_PIECES if found is None else ((found[0],), (Piece(found[1].encode()),))

    return Fold(NO_PIECES, leaf, _joined)


def _joined(a: Pieces, b: Pieces) -> Pieces:
    if not a[0]:
        return b
    if not b[0]:
        return a
    return _written(a[0], b[0]), _summed(a[1], b[1])


def _written(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    if len(a) == len(b) == 1 and len(a[0]) + len(b[0]) < _PIECE:
        return (f"{a[0]},{b[0]}",)
    return a + b


def _summed(a: tuple[Piece, ...], b: tuple[Piece, ...]) -> tuple[Piece, ...]:
    if len(a) == len(b) == 1 and len(a[0].data) + len(b[0].data) < _PIECE:
        return (a[0].then(b[0]),)
    return a + b
