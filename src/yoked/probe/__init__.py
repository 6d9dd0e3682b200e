"""Measure a fleet: its links, its collectives, and what its processors make of a model."""
