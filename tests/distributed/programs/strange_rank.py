"""Rank 1 has another secret than rank 0; with `starts` the program starts the group by itself."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

if __name__ == "__main__":
    os.environ["YOKED_SECRET"] = "the secret of rank number " + os.environ["RANK"]
    if sys.argv[1] == "starts":
        dist.init_process_group("gloo")
    print(dist.get_rank())
