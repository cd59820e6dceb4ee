"""Nodes of a cluster that an embedded broker is started as: their ports and directories. Pure.

The first node's ports are named by their purpose alone, and its files are the broker's own: a
single node is a cluster of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path


def ports_of_nodes(first: Mapping[str, int], nodes: int) -> dict[str, int]:
    """Ports of all nodes by name; those of further nodes are free ones (0)."""
    further = {f"{purpose}-{node}": 0 for node in range(2, nodes + 1) for purpose in first}
    return {**first, **further}


def ports_of_node(node: int, purposes: Iterable[str], ports: Mapping[str, int]) -> dict[str, int]:
    """The ports of one node by their purpose."""
    return {purpose: ports[purpose if node == 1 else f"{purpose}-{node}"] for purpose in purposes}


def directory_of_node(node: int, directory: Path) -> Path:
    """Where its files are; made if it is not there."""
    own = directory if node == 1 else directory / f"node-{node}"
    own.mkdir(exist_ok=True)
    return own
