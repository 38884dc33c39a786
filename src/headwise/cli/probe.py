"""Facts about torch as one JSON object, for ``headwise doctor``; run in a process of its own.

A torch that is broken takes this process down and not the command.
"""

from __future__ import annotations

import json
import sys
from typing import Any


def facts() -> dict[str, Any]:
    """Versions, threads and attention backends of the installed torch."""
    import torch

    cuda = torch.cuda.is_available()
    backends = {
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "memory efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
        "cudnn": torch.backends.cuda.cudnn_sdp_enabled(),
    }
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "sdpa_backends": [name for name, enabled in backends.items() if enabled],
        "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        if cuda
        else [],
        "mps": torch.backends.mps.is_available(),
        "mkldnn": torch.backends.mkldnn.is_available(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(facts()))
