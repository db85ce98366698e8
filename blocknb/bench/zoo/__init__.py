"""`blocknb bench zoo`: the Triton kernels of public libraries as they stand, compiled by blocknb and by Triton.

`libraries/` lists the calls. `run` starts one `worker` process per compiler and alternates between them. `compare` matches the kernels
of the two processes, and prints. The libraries are not part of blocknb; those that are not installed are named and left out.
"""
