"""Kernels in Triton's language, as public projects write them, that `kinds` compiles with blocknb and with Triton from the same text."""
