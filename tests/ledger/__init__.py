"""The ledger of machine code: what ptxas makes of every kernel of the tests, of the zoo, and of the ready-made kernels, for sm_90a.

`tests/golden/sass_ledger.txt` has a line for each kernel (`counters`). `scripts/sass_ledger.py` compares it with the working tree and
updates it; `tests/codegen/test_sass_ledger.py` does the same as a test. Neither needs a GPU.
"""
