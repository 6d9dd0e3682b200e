"""What a run decides for itself, each with its reason and the figures that it rests on."""
