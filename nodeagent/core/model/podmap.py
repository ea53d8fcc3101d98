"""Immutable map from pod UIDs to values, sorted by UID. It is implemented as a persistent treap.

A changed map shares most nodes of the tree with the original, and summaries (`Fold`) are cached per subtree. With a thousand pods on the
node, an admission therefore costs about as much as with ten.
"""

from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar
from zlib import crc32

from msgspec import Struct

V = TypeVar("V")
T = TypeVar("T")


class Fold(Struct, Generic[V, T], frozen=True, eq=False):
    """Function that summarizes a map by combining the results for its parts. `join` must be associative. Each Fold should be a constant,
    because results are cached by the Fold object.
    """

    empty: T
    leaf: Callable[[str, V], T]
    join: Callable[[T, T], T]


class _TreapNode(NamedTuple):
    key: str
    rank: tuple[int, str]
    value: Any
    left: "_TreapNode | None"
    right: "_TreapNode | None"
    leaves: dict[Any, Any]
    """Cached results of `Fold.leaf` for this key and value. All copies of the node share the cache."""
    remembered: dict[Any, Any]
    """Cached results of folds over the subtree below this node, including the node."""

    def over(self, left: "_TreapNode | None", right: "_TreapNode | None") -> "_TreapNode":
        """Return a copy of this node with other subtrees below."""
        return _TreapNode(self.key, self.rank, self.value, left, right, self.leaves, {})


class PodMap(Struct, Generic[V], frozen=True, eq=False):
    _root: _TreapNode | None = None

    def get(self, uid: str) -> V | None:
        node = self._root
        while node is not None:
            key = node.key
            if key == uid:
                value: V = node.value
                return value
            node = node.left if uid < key else node.right
        return None

    def put(self, uid: str, value: V) -> "PodMap[V]":
        # The rank is a hash of the key, so equal maps have equal trees, whatever changes led to them.
        return PodMap(_put(self._root, uid, (crc32(uid.encode()), uid), value))

    def without(self, uid: str) -> "PodMap[V]":
        return PodMap(_remove(self._root, uid))

    def __iter__(self) -> Iterator[tuple[str, V]]:
        pending: list[_TreapNode] = []
        node = self._root
        while pending or node is not None:
            while node is not None:
                pending.append(node)
                node = node.left
            node = pending.pop()
            yield node.key, node.value
            node = node.right

    def __bool__(self) -> bool:
        return self._root is not None

    def __len__(self) -> int:
        return self.fold(_COUNT)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PodMap):
            return NotImplemented
        return self._root is other._root or list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(uid for uid, _ in self))

    def __repr__(self) -> str:
        return f"PodMap({dict(self)!r})"

    def fold(self, fold: Fold[V, T]) -> T:
        """Summarize the map: compute the result for each pod, and join the results in the order of the UIDs."""
        return fold.empty if self._root is None else _fold(self._root, fold)


_COUNT: Fold[Any, int] = Fold(0, lambda _uid, _value: 1, lambda a, b: a + b)


def _fold(node: _TreapNode, fold: Fold[V, T]) -> T:
    result: T | None = node.remembered.get(fold)
    if result is None:
        result = node.leaves.get(fold)
        if result is None:
            result = node.leaves[fold] = fold.leaf(node.key, node.value)
        if node.left is not None:
            result = fold.join(_fold(node.left, fold), result)
        if node.right is not None:
            result = fold.join(result, _fold(node.right, fold))
        node.remembered[fold] = result
    return result


def _put(node: _TreapNode | None, key: str, rank: tuple[int, str], value: Any) -> _TreapNode:
    if node is None:
        return _TreapNode(key, rank, value, None, None, {}, {})
    if key == node.key:
        return _TreapNode(key, rank, value, node.left, node.right, {}, {})
    if rank > node.rank:
        left, right = _split(node, key)
        return _TreapNode(key, rank, value, left, right, {}, {})
    if key < node.key:
        return node.over(_put(node.left, key, rank, value), node.right)
    return node.over(node.left, _put(node.right, key, rank, value))


def _split(node: _TreapNode | None, key: str) -> tuple[_TreapNode | None, _TreapNode | None]:
    if node is None:
        return None, None
    if node.key < key:
        left, right = _split(node.right, key)
        return node.over(node.left, left), right
    left, right = _split(node.left, key)
    return left, node.over(right, node.right)


def _remove(node: _TreapNode | None, key: str) -> _TreapNode | None:
    if node is None:
        return None
    if key == node.key:
        return _merge(node.left, node.right)
    if key < node.key:
        return node.over(_remove(node.left, key), node.right)
    return node.over(node.left, _remove(node.right, key))


def _merge(left: _TreapNode | None, right: _TreapNode | None) -> _TreapNode | None:
    if left is None or right is None:
        return left or right
    if left.rank > right.rank:
        return left.over(left.left, _merge(left.right, right))
    return right.over(_merge(left, right.left), right.right)
