import ast

import jinja2.exceptions


class Compiled:
    def __init__(self, source, names):
        self.source, self.names = source, names

    def render(self, **values):
        return eval(self.source, {**self.names, **values})


class Tree:
    def __init__(self, source):
        self.tree = ast.parse(source, mode="eval")

    def find_all(self, kind):
        found = [node for node in ast.walk(self.tree) if isinstance(node, kind)]
        for node in found:
            node.node = getattr(node, "value", None)
        return found


class ImmutableSandboxedEnvironment:
    def __init__(self, **_):
        self.filters, self.globals = {}, {}

    def from_string(self, source):
        try:
            compile(source, "template", "eval")
        except SyntaxError as error:
            raise jinja2.exceptions.TemplateError(str(error))
        return Compiled(source, self.globals)

    def parse(self, source):
        return Tree(source)
