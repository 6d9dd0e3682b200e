"""What runs inside a rank's process beside its program: proof of the secret, words to all ranks."""
