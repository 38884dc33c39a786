"""What attention costs, in FLOPs, bytes, seconds and cache: arithmetic on a specification.

Every result is a `Figure`: a number with its unit, its formula in the letters of docs/cost.md, the
formula with the numbers filled in, and the figures that it is made of. Nothing here needs torch,
and nothing is allocated.

    >>> from headwise import cost
    >>> from headwise.spec import AttentionSpec
    >>> spec = AttentionSpec(d_model=8192, num_heads=64, num_kv_heads=8, is_causal=True)
    >>> cost.kv_cache(spec, context=4096, layers=80).receipt()
    'L·B·T·per_token = 80·1·4096·4096 = 1,342,177,280 byte'
    >>> cost.flops(spec, q_len=4096).part("scores").receipt()
    '2·B·Hq·T²·Dk = 2·1·64·4096²·128 = 274,877,906,944 FLOP'

The checks of these formulas against real runs are in `headwise.receipts`.
"""

from __future__ import annotations

from headwise.cost.architectures import Architecture, architectures, find_architecture
from headwise.cost.bounds import Bound, memory_needed, roofline
from headwise.cost.cache import kv_cache, layout_name, per_dtype, with_kv_heads
from headwise.cost.configs import from_config, read_config
from headwise.cost.figure import Figure, human
from headwise.cost.hardware import Hardware, find_machine, machines, memory_here
from headwise.cost.lengths import crossover, first_length
from headwise.cost.models import Block, FeedForward, Model, model_parameters, of_spec
from headwise.cost.products import elementwise, flops, stages
from headwise.cost.saved import activations, block_activations
from headwise.cost.summary import Estimate, estimate
from headwise.cost.totals import model_activations, model_cache, model_flops, model_traffic
from headwise.cost.traffic import bytes_moved
from headwise.cost.weights import parameters, total

__all__ = [
    "Architecture",
    "Block",
    "Bound",
    "Estimate",
    "FeedForward",
    "Figure",
    "Hardware",
    "Model",
    "activations",
    "architectures",
    "block_activations",
    "bytes_moved",
    "crossover",
    "elementwise",
    "estimate",
    "find_architecture",
    "find_machine",
    "first_length",
    "flops",
    "from_config",
    "human",
    "kv_cache",
    "layout_name",
    "machines",
    "memory_here",
    "memory_needed",
    "model_activations",
    "model_cache",
    "model_flops",
    "model_parameters",
    "model_traffic",
    "of_spec",
    "parameters",
    "per_dtype",
    "read_config",
    "roofline",
    "stages",
    "total",
    "with_kv_heads",
]
