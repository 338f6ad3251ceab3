"""The prefix cache: blocks whose tokens, and all tokens before them, are known, so that their KV can be shared.

A full block is a *node*: its tokens and the node before it. Nodes are found by a chained hash, but a hash is never
believed: tokens and the whole chain are compared, so a collision costs a hit and never an answer. A block is published
after the step that computed its last token, never before, and stays known while it lies on the free list, until the
block manager hands it out again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """`tokens` fill one block; `parent` is the block before, None for the first of a sequence."""

    parent: Node | None
    tokens: tuple[int, ...]
    key: int


def chained_hash(parent: int, tokens: tuple[int, ...]) -> int:
    """Of a block and everything before it."""
    return hash((parent, tokens))


def _same(one: Node | None, other: Node | None) -> bool:
    """True when both chains have the same tokens, block by block."""
    while one is not other:
        if one is None or other is None or one.tokens != other.tokens:
            return False
        one, other = one.parent, other.parent
    return True


class Prefixes(Protocol):
    """What block manager and scheduler need of a prefix cache."""

    def match(self, tokens: Sequence[int], num_blocks: int) -> tuple[list[int], Node | None]:
        """The blocks that hold the beginning of `tokens`, `num_blocks` at most, and the node of the last."""
        ...

    def publish(self, parent: Node | None, tokens: Sequence[int], first: int, blocks: Sequence[int]) -> Node | None:
        """Make `blocks` known, which hold tokens[first:] block by block after `parent`; the last node back."""
        ...

    def forget(self, block: int) -> None:
        """The block gets another content."""

    def check_integrity(self) -> None:
        """Raise unless nodes and blocks agree."""


class NoPrefixes:
    """The prefix cache that is off: never a match."""

    def match(self, tokens: Sequence[int], num_blocks: int) -> tuple[list[int], Node | None]:
        """See Prefixes."""
        return [], None

    def publish(self, parent: Node | None, tokens: Sequence[int], first: int, blocks: Sequence[int]) -> Node | None:
        """See Prefixes."""
        return None

    def forget(self, block: int) -> None:
        """See Prefixes."""

    def check_integrity(self) -> None:
        """See Prefixes."""


class PrefixCache:
    """Full blocks by their chained hash. `hash_of` is given by tests that want collisions."""

    def __init__(self, block_size: int, hash_of: Callable[[int, tuple[int, ...]], int] = chained_hash) -> None:
        self.block_size = block_size
        self._hash_of = hash_of
        self._found: dict[int, tuple[Node, int]] = {}  # hash -> node and its block
        self._node_of: dict[int, Node] = {}  # block -> node, for every block in _found

    def match(self, tokens: Sequence[int], num_blocks: int) -> tuple[list[int], Node | None]:
        """See Prefixes."""
        blocks: list[int] = []
        node: Node | None = None
        while len(blocks) < num_blocks:
            content = self._content(tokens, len(blocks))
            found = self._found.get(self._key(node, content))
            if found is None or found[0].tokens != content or not _same(found[0].parent, node):
                break
            node, block = found
            blocks.append(block)
        return blocks, node

    def publish(self, parent: Node | None, tokens: Sequence[int], first: int, blocks: Sequence[int]) -> Node | None:
        """See Prefixes. Where another block holds the same already, that one stays known and this one stays private."""
        node = parent
        for number, block in enumerate(blocks, start=first // self.block_size):
            content = self._content(tokens, number)
            key = self._key(node, content)
            found = self._found.get(key)
            if found is not None and found[0].tokens == content and _same(found[0].parent, node):
                node = found[0]
                continue
            if found is not None:  # a collision: the newer one is known from now on
                del self._node_of[found[1]]
            node = Node(node, content, key)
            self.forget(block)
            self._found[key] = (node, block)
            self._node_of[block] = node
        return node

    def forget(self, block: int) -> None:
        """See Prefixes."""
        node = self._node_of.pop(block, None)
        if node is not None:
            del self._found[node.key]

    def check_integrity(self) -> None:
        """See Prefixes."""
        if {block: node for node, block in self._found.values()} != self._node_of:
            raise RuntimeError(f"{len(self._found)} prefixes are known, but {len(self._node_of)} blocks have one")

    def _content(self, tokens: Sequence[int], number: int) -> tuple[int, ...]:
        return tuple(tokens[number * self.block_size : (number + 1) * self.block_size])

    def _key(self, parent: Node | None, content: tuple[int, ...]) -> int:
        return self._hash_of(parent.key if parent else 0, content)
