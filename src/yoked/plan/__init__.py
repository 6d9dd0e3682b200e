"""Predicted speed of each way to train on a fleet, from measurements and the model's shape."""
