"""Saves with torch.distributed.checkpoint on a disk of each rank's own, and loads it again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def state(value: float, place: object) -> dict[str, torch.Tensor]:
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(8.0).reshape(4, 2) + value
    return {"shared": distribute_tensor(whole, mesh, [place]), "plain": torch.tensor([value])}


def main() -> None:
    dist.init_process_group("gloo")
    folder = Path(sys.argv[1]) / str(dist.get_rank()) / "checkpoint"
    told = []
    # The second save meets copies of the first; the last load needs the other rank's half.
    for value, place in ((1.0, Shard(0)), (2.0, Shard(0)), (2.0, Replicate())):
        if not isinstance(place, Replicate):
            dcp.save(state(value, Shard(0)), checkpoint_id=folder)
        found = state(-1.0, place)
        dcp.load(found, checkpoint_id=folder)
        shared = found["shared"]
        assert isinstance(shared, DTensor)
        told.append([shared.full_tensor()[0, 0].item(), found["plain"].item()])
    names = sorted(path.name for path in folder.iterdir())
    print(json.dumps({"loaded": told, "files": names}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
