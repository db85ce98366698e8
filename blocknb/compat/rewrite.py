"""Changes the import statements of a source so that Triton's modules mean ours; everything else stays, lines and columns too.

`import triton.language as tl` becomes `import blocknb.language as tl`, wherever it stands: also in functions that are called much
later, in `try`, in classes. The names bound are those of the original statement. The one case that needs thought is
`import triton.testing`, which binds `triton`: it becomes two imports, of which the second binds the name.
"""

from __future__ import annotations

import ast

#: Triton's module -> ours, the longer names first; whatever lies below goes along. What is not a real module here is a facade.
MODULES = {
    "triton.language": "blocknb.language",
    "triton.testing": "blocknb.testing",
    "triton": "blocknb.compat.triton",
}


def translate(name: str) -> str | None:
    """Our module for one of Triton's; None for anybody else's."""
    for theirs, ours in MODULES.items():
        if name == theirs or name.startswith(theirs + "."):
            return ours + name.removeprefix(theirs)
    return None


def rewrite(tree: ast.Module) -> ast.Module:
    """The tree with its imports of Triton changed, in place."""
    return _Imports().visit(tree)


class _Imports(ast.NodeTransformer):
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
