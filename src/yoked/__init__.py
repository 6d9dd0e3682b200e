"""yoked: train one language model on all the computers you own."""

__version__ = "0.1.0"
