"""Reads its settings when it is imported, as nanochat's does."""

import os

DTYPE = os.environ.get("NANOCHAT_DTYPE")
FORCE_SDPA = os.environ.get("NANOCHAT_FORCE_SDPA")
