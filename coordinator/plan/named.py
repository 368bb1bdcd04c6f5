"""What a source or a model is called wherever its place is nobody's business."""

from pathlib import PurePath

from learning.text.hub import is_hub_name


def named(source: str) -> str:
    """A source's or a model's name without the place where it lies: the last part of a path, and a hub's name whole.

    It goes by the name alone, never by what is there, so that a plan whose files moved has the same hash. A folder that
    is named as a hub's data is, by two words and a slash, keeps both.
    """
    if is_hub_name(source):
        return source
    return PurePath(source).name or "."
