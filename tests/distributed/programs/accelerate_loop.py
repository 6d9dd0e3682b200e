"""A Hugging Face accelerate loop as in its guide: nothing in it says where it runs."""

from __future__ import annotations

import json

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    accelerator = Accelerator()
    # Unlike on each rank: that the weights agree in the end is accelerate's doing.
    torch.manual_seed(accelerator.process_index)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
    data = DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=4)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    losses = []
    for batch, targets in data:
        loss = nn.functional.mse_loss(model(batch), targets)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())
    bare = accelerator.unwrap_model(model)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in bare.parameters()])
    ranks = accelerator.num_processes
    print(json.dumps({"ranks": ranks, "losses": losses, "weights": weights.tolist()}))
    accelerator.end_training()


if __name__ == "__main__":
    main()
