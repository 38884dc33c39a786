"""Names of plain dtypes in files: those of safetensors, which GGUF shares."""

from __future__ import annotations

from collections.abc import Mapping

import torch

DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in DTYPES.items()}


def name_of(dtype: torch.dtype) -> str:
    """The name of a dtype, PyTorch's own where files have none.

    Example:
        >>> name_of(torch.bfloat16), name_of(torch.complex64)
        ('BF16', 'complex64')
    """
    return NAMES.get(dtype, str(dtype).removeprefix("torch."))
