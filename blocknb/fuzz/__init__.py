"""Differential fuzzing (McKeeman 1998) of the compiler with random kernels over the whole language: `blocknb fuzz`.

`generate` makes a kernel from a seed as a small tree (`tree`), and `source` prints it as Python. `evaluate` computes the expected results
program by program with NumPy from the documented meaning of the language; it shares no code with the front end or the interpreters.
`worker` runs kernels in a separate process, and `compare` judges the results. `shrink` reduces a failing kernel, `blame` names the stage
of the compiler that introduced the error, and `reproducer` writes a self-contained script.
"""
