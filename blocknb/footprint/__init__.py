"""Footprints: what a launch does to memory, element by element, known without a GPU and without a change to any array.

`static` follows all programs of a launch by partial evaluation, `recorded` runs them on copies where data decide. Both fill `runs`:
intervals of elements with their program and iteration. `value` is the result, `findings` and `races` are the sentences about it.
"""
