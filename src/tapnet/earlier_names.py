"""Keys and values in recipes and checkpoints of earlier versions, and their names today."""

from __future__ import annotations

import copy
from typing import Any

_RENAMED = {
    ("training", "begin_with"): "init_from",
    ("method", "options", "ways"): "num_references",
    ("data", "options", "turns"): "rotations",
    ("data", "options", "apart"): "one_rotation_per_class",
    ("backbone", "options", "turned"): "four_rotations",
}


_VARIANT_OPTIONS = {  # of TapNet, before its variants had a class of their own
    "projection_references",
    "classification_references",
    "distance",
    "reference_bias",
}


def with_current_names(values: Any) -> Any:
    """Return a nested dictionary with the keys and values of earlier versions replaced by today's."""
    if not isinstance(values, dict):
        return values
    values = copy.deepcopy(values)
    for (*parents, old), new in _RENAMED.items():
        group = values
        for parent in parents:
            group = group.get(parent) if isinstance(group, dict) else None
        if isinstance(group, dict) and old in group:
            group.setdefault(new, group.pop(old))
    training = values.get("training")
    if isinstance(training, dict) and training.get("augmentation") == "turn":
        training["augmentation"] = "rotate"
    method = values.get("method")
    options = method.get("options") if isinstance(method, dict) else None
    if isinstance(options, dict) and method.get("name") == "tapnet" and _VARIANT_OPTIONS & options.keys():
        method["name"] = "tapnet-variant"
    return values


def with_current_key(change: str) -> str:
    """Return a change `key.sub=value` with the key that is used today."""
    key, equals, value = change.partition("=")
    parts = tuple(key.split("."))
    return ".".join((*parts[:-1], _RENAMED[parts])) + equals + value if parts in _RENAMED else change
