"""Stands in for jinja2 beside the stand-in for tokenizers: a template is an expression of Python."""

__version__ = "3.1.6"
