"""What runs on the hosts of a launch: one host program each, and under it the ranks."""
