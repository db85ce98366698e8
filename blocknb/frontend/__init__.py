"""The front end translates a Python function into tile IR.

`source.Source` holds the text and the AST of a function. `parse.parse` executes the AST symbolically. `parse.ArgType` and
`parse.Constant` describe the arguments. `dependencies.dependencies` lists everything that the generated code depends on. This module
imports nothing, because a launch that finds its kernel in the disk cache does not need the parser.
"""
