"""What a training step takes on several hosts: each rank's work and every message, on one clock.

A step of a rank, as `yoked.train.trainer` and `yoked.train.sync` have it:

    forward | lm_head      | layers backward      | Muon (own)      | AdamW | forward
    rows ->   head pieces ->  matrices ->  rows ->  own matrices ->

The messages of a step queue for the wire in that order. A message travels when every rank has
made its part, at the rate of the busiest port, both directions at once. While it travels, the
ranks that move it compute slower by what copying and summing cost their cores. A step counts
in the steady state: the new matrices of one arrive while the next begins.

Pure: numbers in, numbers out. Seconds, bytes, bytes a second; *numbers* are parameters.
"""
