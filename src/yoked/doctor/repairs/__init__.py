"""Lines that mend a host, each by a function with what it needs; values are quoted there.

A check takes one of these, or adds one. What takes a line back is made beside it.
"""
