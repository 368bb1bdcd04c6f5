"""Hands a published student out: copies its signed folder, or uploads it to a model hub, by the hub's own library.

Either is whole or not there at all: a folder is renamed into its place, a hub gets one commit.
"""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from coordinator.errors import RunError
from coordinator.published import manifest
from coordinator.publishing.publish import placed

if TYPE_CHECKING:
    from huggingface_hub import HfApi

HUB: Final = "hub:"
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
_OWN: Final = ".gitattributes"
"""What a hub puts into every repository."""


def hub_name(to: str) -> str | None:
    """The name on a hub that "hub:OWNER/NAME" says; None for a folder. Raises `RunError` for a name that none has."""
    if not to.startswith(HUB):
        return None
    name = to.removeprefix(HUB)
    if not _NAME.fullmatch(name):
        raise RunError(
            f'--to "{to}" names no repository. Write {HUB}OWNER/NAME, for example {HUB}clinics/notes.', code="C803"
        )
    return name


def copy(student: Path, folder: Path) -> None:
    """Copy a student's folder to another place, which is free. Raises `RunError`."""
    if folder.resolve().is_relative_to(student.resolve()):
        raise RunError(f"{folder} lies in the student's own folder {student}. Choose another place.", code="C302")
    placed(folder, lambda beside: _filled(student, beside))


def _filled(student: Path, beside: Path) -> None:
    shutil.copytree(student, beside, dirs_exist_ok=True, symlinks=True)


def upload(student: Path, name: str, *, public: bool) -> str:
    """Upload a student's folder to the hub that `HF_ENDPOINT` names, else Hugging Face's, in one commit.

    name: OWNER/NAME. public: whether a repository that is made for it may be read by everybody; one that is there stays
    what it is. What it holds of an earlier student goes; one that holds anything else is refused. Returns the address
    of the commit. Raises `RunError`.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    files = sorted(path.relative_to(student).as_posix() for path in student.rglob("*") if path.is_file())
    api = HfApi(library_name="conclave-distill")
    with _words(name, api.endpoint):
        api.create_repo(name, private=not public, exist_ok=True)
        there = _there(api, name)
        added = [CommitOperationAdd(file, student / file) for file in files]
        gone = [CommitOperationDelete(file) for file in sorted(there - set(files))]
        return api.create_commit(name, [*added, *gone], commit_message="A student of Conclave").commit_url


def _there(api: "HfApi", name: str) -> set[str]:
    """The files of a repository, all of an earlier student. Raises `RunError` where they are something else."""
    there = set(api.list_repo_files(name)) - {_OWN}
    if there and manifest.MANIFEST not in there:
        raise RunError(
            f"The repository {name} holds {len(there)} files that are no student of Conclave, and was left alone. "
            "Choose another name, or empty it.",
            code="C107",
        )
    return there


@contextmanager
def _words(name: str, endpoint: str) -> Iterator[None]:
    """Turn what the hub's library raises into `RunError`."""
    from huggingface_hub import errors
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    unreached: type[Exception] = getattr(errors, "HTTPError", OSError)  # of the HTTP library that this version uses
    nothing = f"Nothing was published at {name}."
    try:
        yield
    except LocalTokenNotFoundError:
        raise RunError(
            f"{nothing} No token of {endpoint} is here: run `hf auth login`, or set HF_TOKEN.", code="C803"
        ) from None
    except OfflineModeIsEnabled:
        raise RunError(f"{nothing} HF_HUB_OFFLINE is set: take that back to reach {endpoint}.", code="C803") from None
    except HfHubHTTPError as error:
        status = error.response.status_code
        said = {
            401: "does not take this token: run `hf auth login`, or set HF_TOKEN to a token that may write",
            403: f"does not let this token write to {name}: use one that may, or a name of your own",
            404: f"knows no {name}, or hides it from this token",
            409: f"says that {name} is being changed by somebody else: try again",
            413: "says that a file is too large",
        }.get(status, f"answered {status}: {error.server_message or error}")
        raise RunError(f"{nothing} {endpoint} {said}.", code="C803") from None
    except unreached as error:
        raise RunError(
            f"{nothing} {endpoint} cannot be reached: {error}. HF_ENDPOINT names another hub.", code="C803"
        ) from None
    except (ValueError, OSError) as error:
        raise RunError(f"{nothing} {error}", code="C803") from None
