"""The duration of a training step on several hosts: a discrete-event simulation.

It plays each rank's work and every message on one clock. A step of a rank, as `yoked.train.trainer`
and `yoked.train.sync` execute it:

    forward | lm_head      | layers backward      | Muon (own)      | AdamW | forward
    rows ->   head chunks ->  matrices ->  rows ->  own matrices ->

The messages of a step queue for the network in that order. A message is sent when every rank has
computed its part, at the rate of the busiest port, in both directions at once. While it is in
flight, its ranks compute slower: their cores also copy and sum. The result is a step of the steady
state: the new matrices of one step arrive while the next one begins.

Pure functions. Units are seconds, bytes and bytes a second; *numbers* are parameters.
"""
