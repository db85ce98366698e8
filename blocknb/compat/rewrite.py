"""Rewrites the imports of Triton in a syntax tree to imports of blocknb; lines, columns and everything else stay.

`import triton.language as tl` becomes `import blocknb.language as tl` wherever it stands: also in functions, `try` statements and
classes. The statement binds the same names as before. One case needs two statements: `import triton.testing` binds `triton`, so it
becomes two imports, the second of which binds that name.
"""

from __future__ import annotations

import ast

#: Maps Triton's modules, with their submodules, to ours, longer names first. Modules that blocknb does not have are facades.
MODULES = {
    "triton.language": "blocknb.language",
    "triton.testing": "blocknb.testing",
    "triton": "blocknb.compat.triton",
}


def translate(name: str) -> str | None:
    """Our module for one of Triton's; None for other modules."""
    for theirs, ours in MODULES.items():
        if name == theirs or name.startswith(theirs + "."):
            return ours + name.removeprefix(theirs)
    return None


def rewrite(tree: ast.Module) -> ast.Module:
    """Rewrites the tree's imports of Triton in place."""
    rewritten: ast.Module = _Imports().visit(tree)
    return rewritten


class ImportTransformer(ast.NodeTransformer):
    """Transforms imports. It visits statements only, which takes a tenth of the time: expressions hold no imports."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, name, None)
            if isinstance(children, list):  # a lambda's body is an expression
                visited: list[ast.AST] = []
                for child in children:
                    found = self.visit(child)
                    visited.extend(found if isinstance(found, list) else [found])
                children[:] = visited
        return node


class _Imports(ImportTransformer):
    def visit_Import(self, node: ast.Import) -> ast.AST | list[ast.AST]:
        if not any(translate(alias.name) for alias in node.names):
            return node
        parts: list[ast.AST] = []
        for alias in node.names:
            ours = translate(alias.name)
            if ours is None:
                parts.append(ast.Import([alias]))
                continue
            parts.append(ast.Import([_alias(alias, ours, alias.asname or "triton")]))
            if alias.asname is None and alias.name != "triton":
                parts.append(ast.Import([_alias(alias, MODULES["triton"], "triton")]))
        return [ast.copy_location(part, node) for part in parts]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        ours = translate(node.module) if node.module and not node.level else None
        return node if ours is None else ast.copy_location(ast.ImportFrom(ours, node.names, 0), node)


def _alias(old: ast.alias, name: str, bound: str) -> ast.alias:
    return ast.copy_location(ast.alias(name, bound), old)
