"""Measure a fleet: its links, its collectives, and a training step on each host."""
