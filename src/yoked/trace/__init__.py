"""What the ranks of a run did, on one clock: their recordings, their hosts' clocks, the file."""
