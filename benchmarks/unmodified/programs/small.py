"""A small model, each rank's rows, and what one process learns of the rows of all ranks.

For programs in which ranks keep parts: what is gathered of these is equal everywhere, right or
wrong.
"""

import torch
from torch import nn

STEPS = 6


def build():
    """All ranks begin with the same weights."""
    torch.manual_seed(1)
    hidden = (nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(3))
    return nn.Sequential(*hidden, nn.Linear(32, 1))


def loss_of(model, step, ranks):
    dice = [torch.Generator().manual_seed(1000 * step + rank) for rank in ranks]
    inputs = torch.cat([torch.randn(4, 32, generator=each) for each in dice])
    inputs = inputs.to(next(model.parameters()).device)
    return nn.functional.mse_loss(model(inputs), inputs.sum(dim=1, keepdim=True))


def check(weights, ranks):
    """Raises AssertionError where these are not the weights that one process comes to.

    It steps by hand, because an optimizer would count among those of the program.
    """
    model = build()
    for step in range(STEPS):
        model.zero_grad()
        loss_of(model, step, range(ranks)).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(0.05 * parameter.grad)
    for found, expected in zip(weights, model.parameters(), strict=True):
        torch.testing.assert_close(found.cpu(), expected.detach())
