"""Says what it found before it did anything."""

import json
import os
import sys

import torch.distributed as dist
from nanochat.common import DTYPE, FORCE_SDPA

found = {
    "dtype": DTYPE,
    "sdpa": FORCE_SDPA,
    "data": os.environ.get("NANOCHAT_DATA_DIR"),
    "ranks": dist.get_world_size() if dist.is_initialized() else 1,
    "args": sys.argv[1:],
}
print(json.dumps(found))
