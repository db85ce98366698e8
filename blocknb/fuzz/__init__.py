"""Random kernels over the whole language, checked against an independent evaluator: `blocknb fuzz`.

`generate` makes a kernel from a seed as a small tree (`tree`), `source` prints it as Python, `evaluate` computes what it must give, one
program at a time, with NumPy and the documented meaning of the language; it shares no code with the front end or the interpreters.
`worker` runs kernels in a process of its own, `compare` judges the results, `shrink` makes a failing kernel small, `blame` names the
stage of the compiler that went wrong, and `reproducer` writes a script of one file.
"""
