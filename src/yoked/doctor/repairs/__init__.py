"""Lines that mend a host, each made by a function of what it needs; values are quoted there.

A check calls one of these. What takes a line back is made beside it. `Fix.repair` has the
function's name.
"""
