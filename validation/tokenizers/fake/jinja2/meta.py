import ast


def find_undeclared_variables(tree):
    return {node.id for node in ast.walk(tree.tree) if isinstance(node, ast.Name)}
