"""Long texts assembled from the pods of a state. Each pod contributes a piece, and the pieces are joined once at the
end.

A state differs from the previous one in one pod, so nearly all pieces are cached (core/model/podmap.py).
Nothing long is copied except for the result.
"""

from collections.abc import Callable

from nodeagent.core.model.podmap import Fold
from nodeagent.core.model.promises import PodPromises
from nodeagent.formats.syntax.fnv import Piece

_PIECE = 2048
"""Limit in characters for joining two neighbouring pieces. Longer texts remain lists of pieces."""

Pieces = tuple[tuple[str, ...], tuple[Piece, ...]]
"""Entries in order, as pieces of the file (joined by a comma) and of the hashed text (joined by a blank)."""

NO_PIECES: Pieces = ((), ())


def pieces_of(entry: Callable[[str, PodPromises], tuple[str, str] | None]) -> Fold[PodPromises, Pieces]:
    """Create the fold that collects the entries of all pods. `entry` returns None for a pod without an entry."""

    def leaf(uid: str, pod: PodPromises) -> Pieces:
        found = entry(uid, pod)
        return NO_PIECES if found is None else ((found[0],), (Piece(found[1].encode()),))

    return Fold(NO_PIECES, leaf, _join_pieces)


def _join_pieces(a: Pieces, b: Pieces) -> Pieces:
    if not a[0]:
        return b
    if not b[0]:
        return a
    return _join_file_pieces(a[0], b[0]), _join_hashed_pieces(a[1], b[1])


def _join_file_pieces(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    if len(a) == len(b) == 1 and len(a[0]) + len(b[0]) < _PIECE:
        return (f"{a[0]},{b[0]}",)
    return a + b


def _join_hashed_pieces(a: tuple[Piece, ...], b: tuple[Piece, ...]) -> tuple[Piece, ...]:
    if len(a) == len(b) == 1 and len(a[0].data) + len(b[0].data) < _PIECE:
        return (a[0].then(b[0]),)
    return a + b
