"""A Lightning module and its Trainer; with `explicit`, the Trainer is told of both hosts."""

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sum(lightning.LightningModule):
    """Learns the sum of eight numbers."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))

    def training_step(self, batch, index):
        inputs, targets = batch
        return nn.functional.mse_loss(self.layers(inputs), targets)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=0.01)


inputs = torch.randn(64, 8, generator=torch.Generator().manual_seed(3))
rows = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
ranks = {"devices": 1, "num_nodes": 2, "strategy": "ddp"} if "explicit" in sys.argv else {}
trainer = lightning.Trainer(max_epochs=1, **ranks)
trainer.fit(Sum(), DataLoader(rows, batch_size=4, shuffle=True))
