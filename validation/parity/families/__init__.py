"""Families of models that have a file each: adding one is enough for imports, exports, fixtures and cards. A file has

TITLE, NOTES   what its card says
KEYS           of the card's model: what differs from DEFAULTS of models.py, with "class" as its model_type
MODELS         of check_import.py: name: (keys that differ from KEYS, types)
config         the configuration of transformers: of keys, of what all classes take, of the rotation
name           what its files call a tensor that others call so
read           the keys that its config.json says beyond those that all have

The files need no torch, and import transformers where they use it."""

import importlib
import pkgutil

ALL = {name: importlib.import_module(f"{__name__}.{name}") for _, name, _ in pkgutil.iter_modules(__path__)}


def of(keys):
    """The family of a model's keys; None: it has no file."""
    return ALL.get(keys.get("class"))
