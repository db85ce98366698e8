"""Scalar and vector arithmetic as LLVM text, which both back ends use: instructions, casts, elementary functions and exact arithmetic."""
