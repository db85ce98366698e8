"""The benchmarks of the ready-made kernels, `blocknb bench NAME`: one small definition each, one harness for all.

`definition` says what a benchmark is, `catalogue` lists them all, `peers_*` hold the other libraries' calls by the same names,
`triton_source` runs our own source through Triton's package, `measure` checks every peer against float64 and then times them in turn,
`search` sweeps configurations, `table` and `floors` print, `runner` does as the command line says, and `launching` times launches.
"""
