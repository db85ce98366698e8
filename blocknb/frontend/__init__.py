"""The front end: a Python function becomes tile IR.

`source.Source` holds a function's text and AST, `parse.parse` runs it symbolically; `parse.ArgType` and `parse.Constant` say what the
arguments are, `dependencies.dependencies` what the kernel's meaning depends on. Nothing is imported here: who only looks for a compiled
kernel on disk needs no parser.
"""
