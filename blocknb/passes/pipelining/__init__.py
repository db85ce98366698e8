"""Software pipelining: the parts that all pipelining passes share.

`legality` says which loads may run some iterations early. `later_iterations` computes the addresses of a later iteration. `loop_rotation`
rebuilds a loop that carries more values. `circular_buffer` holds the tiles in flight. `warp_plan` and `warp_partition` split a function
into warp roles.
"""
