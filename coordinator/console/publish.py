"""`coordinator publish` and `coordinator track`: hand a student out once more, or its figures to a tracker."""

from typing import Annotated

import typer

from coordinator.console import shown


def publish(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's id, the beginning of one, its folder, or a student's.")
    ],
    to: Annotated[str, typer.Option("--to", metavar="DIR|hub:OWNER/NAME", help="A new folder, or a model hub.")],
    public: Annotated[
        bool, typer.Option("--public", help="Let everybody read a repository that is made for it; else it is private.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")
    ] = False,
) -> None:
    """Hand out a student once more, if it verifies: copy its signed folder, or upload it to a model hub."""
    from coordinator.run import handing_out

    found = handing_out.publish(run, to, public=public)
    shown.out.print(f"published: {found.place}", markup=False)
    if as_json:
        shown.as_one_line({"place": found.place, "epsilon": found.verdict.epsilon})


def track(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's id, the beginning of one, or its folder.")],
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="mlflow:URI|wandb:PROJECT", help="A server of MLflow, or a project of Weights & Biases."
        ),
    ],
    student: Annotated[bool, typer.Option("--student", help="Send the student's folder, too.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="End with one JSON object on the last line of standard output.")
    ] = False,
) -> None:
    """Tell an experiment tracker of a finished run that verifies: figures, settings, card, and nothing unpublished."""
    from coordinator.run import handing_out

    place = handing_out.track(run, to, student=student)
    shown.out.print(f"tracked: {place}", markup=False)
    if as_json:
        shown.as_one_line({"place": place})
