import ast

Getattr, Const = ast.Attribute, ast.Constant
