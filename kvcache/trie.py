"""A radix tree over token ids: items, each kept under its ids, found by how many of them a text begins with."""

from collections.abc import Iterator
from typing import Generic, TypeVar

import numpy as np

Item = TypeVar("Item")


class Trie(Generic[Item]):
    """A node, and the tree below it. `ids` int32 [n] lead to it from the node above; `items` stand where they end."""

    def __init__(self, ids: np.ndarray | None = None) -> None:
        self.ids = np.empty(0, np.int32) if ids is None else ids
        self.children: dict[int, Trie[Item]] = {}  # by the first of their ids
        self.items: list[Item] = []

    def insert(self, ids: np.ndarray, item: Item) -> None:
        """Keep `item` under `ids`."""
        node = self
        while len(ids):
            child = node.children.get(int(ids[0]))
            if child is None:
                child = node.children[int(ids[0])] = Trie(ids.copy())
            elif (common := common_length(child.ids, ids)) < len(child.ids):
                child = node.children[int(ids[0])] = child._parted(common)
            node, ids = child, ids[len(child.ids) :]
        node.items.append(item)

    def _parted(self, at: int) -> "Trie[Item]":
        """A new node after the first `at` ids, with this one, of the others, below it."""
        above: Trie[Item] = Trie(self.ids[:at].copy())
        self.ids = self.ids[at:].copy()
        above.children[int(self.ids[0])] = self
        return above

    def remove(self, ids: np.ndarray, item: Item) -> None:
        """Take out `item`, which is kept under `ids`, and the branch that led to nothing else."""
        if not len(ids):
            return self.items.remove(item)
        child = self.children[int(ids[0])]
        child.remove(ids[len(child.ids) :], item)
        if not child.items and not child.children:
            del self.children[int(ids[0])]

    def shared(self, ids: np.ndarray) -> Iterator[tuple[int, Item]]:
        """(how many leading ids an item shares with `ids`, the item), those that share most first; items that share none are left out."""
        path = list(self._path(ids))
        for (length, node), below in zip(reversed(path), [None, *(node for _, node in reversed(path))]):
            yield from ((length, item) for item in node._all(below))

    def _path(self, ids: np.ndarray) -> Iterator[tuple[int, "Trie[Item]"]]:
        """The nodes that `ids` lead through, each with how many of the ids are shared with all below it."""
        node, done = self, 0
        while done < len(ids) and (child := node.children.get(int(ids[done]))) is not None:
            common = common_length(child.ids, ids[done:])
            node, done = child, done + common
            yield done, node
            if common < len(child.ids):
                return

    def _all(self, but: "Trie[Item] | None" = None) -> Iterator[Item]:
        """Every item here and below, but for one branch."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield from node.items
            waiting += [child for child in node.children.values() if child is not but]


def common_length(a: np.ndarray, b: np.ndarray) -> int:
    """How many leading ids two sequences share."""
    shorter = min(len(a), len(b))
    different = a[:shorter] != b[:shorter]
    return int(different.argmax()) if different.any() else shorter
