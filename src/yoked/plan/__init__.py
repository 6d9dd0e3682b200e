"""What each way of training would give on a fleet, from measurements and the model's shape."""
