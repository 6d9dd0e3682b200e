"""Look at all hosts and all pairs before a launch: what will go wrong, why, and the fix."""
