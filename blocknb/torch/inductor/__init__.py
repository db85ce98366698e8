"""A backend of torch.compile: Inductor generates kernels in Triton's language, and blocknb compiles and launches them.

Nothing is replaced in the process for good. Generated files carry a mark, and only those are loaded with imports of blocknb (`sources`).
While a graph of ours compiles, its questions about Triton get our answers (`patches`). An installed Triton stays usable, and
none is needed. torch's source: torch/_inductor of the versions in `versions`.
"""
