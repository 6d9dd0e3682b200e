"""What several parts do together, without a command line: a fleet's training, probe and bench."""
