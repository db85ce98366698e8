"""Passes on the memory level, where shared-memory buffers and barriers are explicit."""
