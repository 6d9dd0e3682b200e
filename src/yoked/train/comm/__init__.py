"""How ranks reach each other: the only package that calls torch.distributed for the trainer."""
