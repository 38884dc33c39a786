"""Measuring attention: speed beside other libraries, and conformance to cases that others wrote.

* ``shapes``: what is computed, as plain sizes; ``workloads``: the table of what is measured.
* ``cases``: the tensors of a shape; ``truth``: what is right, in float64.
* ``peers``: the ways of other libraries to compute a case; ``ours``: our own.
* ``timing``: who is faster, in turns; ``limits``: what the machine can do; ``memory``.
* ``attention``: one run over all of it; ``targets``: what was promised; ``report``: for people.
"""
