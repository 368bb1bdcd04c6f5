"""`coordinator watch`: follows a run of this machine from its store alone, or a submission elsewhere."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from coordinator.console import shown, submitting
from coordinator.console.seen import followed

if TYPE_CHECKING:
    from coordinator.progress.terminal import Terminal
    from coordinator.store.preparing import Announced
    from coordinator.store.watching import View

_LOOKED_EVERY: Final = 1.0


def watch(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the beginning of one, or its folder.")],
    at: submitting.At = None,
    who: submitting.As = submitting.FILE,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")
    ] = False,
) -> None:
    """Show a run's progress, from its store alone, until the run ends or stops. Ctrl-C stops watching, not the run."""
    if at is not None:
        return submitting.watch(run, at, who, as_json=as_json)
    from coordinator.store.following import watch as views
    from coordinator.store.watching import render

    with followed() as terminal:

        def prepared(found: "Announced") -> None:
            terminal.say(f"run {found.run} is being prepared")
            terminal.at("prepare", found.seconds, finished=False)
            terminal.since(found.seconds)

        for view in views(run, every=_LOOKED_EVERY, prepared=prepared):
            if not view.at_rest:
                show(view, terminal)
    for line in render(view):
        shown.out.print(line, markup=False)
    if as_json:
        shown.as_one_line(asdict(view))
    return None


def show(view: "View", terminal: "Terminal") -> None:
    """Show on a terminal what a store shows of a run that goes on."""
    terminal.expect(view.expected, view.whole)
    terminal.since(view.elapsed)
    terminal.opened(view.run, None, view.budget)
    terminal.warn(view.warning)
    if view.spent is not None:
        terminal.spent(view.spent)
    for stage in view.stages:
        terminal.at(stage.name, stage.seconds, finished=stage.finished)
    for name, state in view.parties.items():
        terminal.party(name, state)
    for part in view.parts:
        if part.total is not None:
            terminal.bar(part.label, part.done, part.total, part.note)
