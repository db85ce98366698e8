"""The benchmarks of the ready-made kernels, `blocknb bench NAME`: one definition per kernel and one harness for all.

`definition` declares the form of a benchmark, and `catalogue` lists all. `peers_*` call other libraries under the same names.
`triton_source` compiles our own kernels with Triton. `measure` checks every peer against float64 and then times the peers in turn.
`search` sweeps configurations, `table` and `floors` format results, `runner` implements the command, and `launching` times launches.
"""
