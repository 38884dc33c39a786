"""The ways of other libraries to compute what we compute.

Adding a peer = one ``Peer`` in a module of this package, and the module's line below. A peer
counts as one call of torch (``torch``), as another library (``library``), or is only ``shown``.
"""

from __future__ import annotations

from headwise.bench.peers import flex, layers, onnxruntime, openvino, torch_calls
from headwise.bench.peers.base import Peer
from headwise.registry import Registry

PEERS: Registry[Peer] = Registry("peer")
for _module in (torch_calls, flex, layers, onnxruntime, openvino):
    for _peer in _module.PEERS:
        PEERS.add(_peer.name, _peer)

__all__ = ["PEERS", "Peer"]
