"""The library of software pipelining: what the passes that run parts of later iterations early have in common.

`stages` is the number of iterations at work; `staged_tiles` finds loads whose tiles go to shared memory; `legality` says which may run
early, and `backward_slice` from which values an address follows. `loop_rotation` rebuilds a loop that carries more values, with the values
of `later_iterations` and the tiles of a `circular_buffer`. `operand_prefetch` rotates a loop around its product. `warp_plan` and
`warp_partition` split a function into warp roles.
"""
