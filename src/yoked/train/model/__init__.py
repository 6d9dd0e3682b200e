"""The GPT and what its forward and backward passes are made of; importers name the module."""
