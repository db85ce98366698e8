"""Fuzzing of the notebook with random cells: `blocknb fuzz --cells`. It does for cells what `blocknb.fuzz` does for kernels.

`generate` makes a sequence of cells from a seed: options of the magics, redefinitions, wrong arguments, mutated kernels, interrupts.
`shell` runs it in a real IPython shell, and applies `oracles`. The shell must survive, and the next correct cell must give the right
answer. An error must show the user's lines and none of blocknb's. The card's document must match the page's schema (`schema`). `run` is the
command, and `shrink` reduces a failing sequence (delta debugging: Zeller, Hildebrandt 2002).
"""
