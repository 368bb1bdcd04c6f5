"""Executes the notebooks of examples/notebooks, and stores what their cells show.

Run as `python docs/making/execute_notebooks.py [NAME ...]`. Each is executed in a copy of examples/, so that what a run
leaves is removed with it.
"""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "examples/notebooks"
SECONDS = 1200
"""The most that one cell may take, on a machine that has other work."""
_TERMINAL = re.compile(r"\x1b\[[0-9;]*m")


def executed(path: Path, folder: Path) -> nbformat.NotebookNode:
    """The notebook with what its cells show, executed in a copy of examples/ below `folder`. Raises what a cell
    raises.
    """
    copy = folder / "examples"
    shutil.copytree(ROOT / "examples", copy, ignore=shutil.ignore_patterns("published", ".ipynb_checkpoints"))
    notebook = nbformat.read(path, as_version=4)
    os.environ["CONCLAVE_HOME"] = str(folder / "home")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    client = NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(copy / "notebooks")}}
    )
    client.execute()
    return _cleaned(notebook, copy / "notebooks")


def _cleaned(notebook: nbformat.NotebookNode, folder: Path) -> nbformat.NotebookNode:
    """Without times and versions, what libraries say of their own surroundings, and places of this machine."""
    notebook.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for cell in notebook.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.outputs = _joined([each for each in cell.outputs if each.get("name") != "stderr"])
        for output in cell.get("outputs", ()):
            if output.output_type == "stream":
                output.text = _TERMINAL.sub("", output.text).replace(f"{folder}/", "")
                continue
            output.metadata = {}
            if "text/html" in output.data or "image/png" in output.data:
                output.data["text/plain"] = "<what the page shows>"
            for kind, shown in output.data.items():
                output.data[kind] = shown.replace(f"{folder}/", "")
    return notebook


def _joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Lines that a display printed one by one as one text."""
    found: list[nbformat.NotebookNode] = []
    for output in outputs:
        if output.output_type == "display_data" and output.data.get("text/html", "").startswith("<pre"):
            output = nbformat.v4.new_output("stream", name="stdout", text=output.data["text/plain"])
        if found and output.output_type == found[-1].output_type == "stream":
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def main(names: list[str]) -> None:
    """Execute the notebooks with these names, or all, and store them."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            notebook = executed(path, Path(folder).resolve())
        nbformat.write(notebook, path)
        print(f"{path.relative_to(ROOT)}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
