import jinja2.exceptions


class Compiled:
    def __init__(self, source, names):
        self.source, self.names = source, names

    def render(self, **values):
        return eval(self.source, {**self.names, **values})


class ImmutableSandboxedEnvironment:
    def __init__(self, **_):
        self.filters, self.globals = {}, {}

    def from_string(self, source):
        try:
            compile(source, "template", "eval")
        except SyntaxError as error:
            raise jinja2.exceptions.TemplateError(str(error))
        return Compiled(source, self.globals)
