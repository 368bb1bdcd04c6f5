"""The public name of a source or a model, without its path on this machine."""

from pathlib import PurePath

from learning.text.hub import is_hub_name


def named(source: str) -> str:
    """A source's or a model's name without its path: the last part of a path, or the whole name on a hub.

    It depends on the name alone, never on what exists at that path, so that a plan whose files were moved keeps its
    hash. A folder whose name has the form of a hub's (two words and a slash) keeps both.
    """
    if is_hub_name(source):
        return source
    return PurePath(source).name or "."
