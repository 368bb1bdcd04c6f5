"""A wheel of this tree is all of it, and works where nothing of the tree is at hand.

The wheel is installed into an environment of its own without the libraries that it names, which would take minutes:
those of this environment are put on its search path, without what makes this tree importable. By pipx it is installed
with them in sight, so that pip itself says whether they are the versions that the wheel asks for.
"""

import csv
import io
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("aggregation", "coordinator", "deploy", "learning", "party", "protos")
FOR_SITES = ("ray", "site", "kubernetes")
"""Folders of `deploy` that are read in the tree, and are no packages."""
NOT_SHIPPED = tuple(f"deploy/{name}/" for name in FOR_SITES)
PLAN = [
    ("size   = 1000", "size   = 60"),
    ("dimension = 100", "dimension = 8"),
    ('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0'),
    ('source = "documentation-topics"', 'source = "public.jsonl"'),
    ('source = "documentation-heldout"', 'source = "public.jsonl"'),
    ("parties = 4", "parties = 2"),
]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built from a copy, so that the tree keeps nothing of the building."""
    tree, made = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("made")
    for room in ROOMS:
        shutil.copytree(ROOT / room, tree / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*command, "--wheel-dir", made, "."], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = made.iterdir()
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The `bin` of an environment in which only the wheel is installed, beside this environment's libraries."""
    home = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(home, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", home / "bin" / "python"]
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # where the tree seems installed
    done = subprocess.run(
        [*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], capture_output=True, text=True, env=clean
    )
    assert done.returncode == 0, done.stderr
    (site,) = (home / "lib").glob("python*/site-packages")
    # A folder that a .pth names is searched, but its own .pth files, which would find this tree, are not read.
    libraries = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (site / "libraries.pth").write_text("".join(f"{each}\n" for each in libraries))
    return home / "bin"


def without_this_tree():
    """The environment of processes that must not find the tree."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV", "CONCLAVE"))
    }


@pytest.fixture(scope="module")
def by_pipx(wheel, tmp_path_factory):
    """Where pipx puts the commands of the wheel. From the index it takes its own pip alone."""
    home = tmp_path_factory.mktemp("pipx")
    seen = libraries_wheel(home)
    places = {"HOME": "home", "BIN_DIR": "bin", "MAN_DIR": "man", "SHARED_LIBS": "shared"}
    environment = without_this_tree() | {f"PIPX_{name}": str(home / place) for name, place in places.items()}
    pipx = [sys.executable, "-m", "pipx"]
    offline = ["--backend", "pip", "--skip-maintenance", "--pip-args=--no-index"]
    for words in (["upgrade-shared"], ["install", *offline, "--preinstall", seen, wheel]):
        done = subprocess.run([*pipx, *words], cwd=home, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    return home / "bin"


def libraries_wheel(home):
    """A wheel that puts this environment's libraries on a search path, all but this tree."""
    libraries = home / "libraries"
    libraries.mkdir()
    for folder in dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]):
        for path in Path(folder).iterdir():
            if path.suffix != ".pth" and "conclave" not in path.name:
                (libraries / path.name).symlink_to(path)
    about = "libraries-1.dist-info"
    files = {
        "libraries.pth": f"{libraries}\n",
        f"{about}/METADATA": "Metadata-Version: 2.1\nName: libraries\nVersion: 1\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    path = home / "libraries-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.fixture
def command(request, tmp_path):
    """`command("coordinator", ...)`: what an installed command says, far from the tree; by pip or as `param` says."""
    installed = request.getfixturevalue(getattr(request, "param", "installed"))
    kept = without_this_tree()
    kept |= {"CONCLAVE_HOME": str(tmp_path / "home"), "PATH": f"{installed}{os.pathsep}{os.environ['PATH']}"}

    def run(name, *arguments):
        done = subprocess.run(
            [installed / name, *arguments],
            cwd=tmp_path,
            env=kept,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


def test_a_wheel_names_every_file_that_it_has_and_no_other(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = [name for name in names if name.endswith(".dist-info/RECORD")]
        listed = [row[0] for row in csv.reader(io.StringIO(archive.read(record).decode()))]
        mine = "\n".join(archive.read(name).decode(errors="replace") for name in names)
    assert sorted(listed) == sorted(names)
    assert not [name for name in names if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts]
    assert {name.partition("/")[0] for name in names} == {*ROOMS, record.partition("/")[0]}
    assert str(ROOT) not in mine


def test_a_wheel_has_every_package_and_every_file_that_they_read(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entries = archive.read(next(name for name in names if name.endswith("entry_points.txt"))).decode()
    there = [path for room in ROOMS for path in (ROOT / room).rglob("*") if path.is_file()]
    told = {path.relative_to(ROOT).as_posix() for path in there if "__pycache__" not in path.parts}
    wanted = {name for name in told if not name.startswith(NOT_SHIPPED)}
    assert wanted - names == set()
    assert names - wanted == {name for name in names if ".dist-info/" in name}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for group in ({"console_scripts": project["scripts"]}, project["entry-points"]):
        for points in group.values():
            assert [f"{name} = {place}" for name, place in points.items() if f"{name} = {place}" not in entries] == []


def test_what_is_installed_is_the_wheel(command, installed):
    said = command("python", "-c", "import coordinator, party, deploy; print(coordinator.__file__, deploy.__file__)")
    assert all(Path(each).is_relative_to(installed.parent) for each in said.split())
    assert command("coordinator", "--version").startswith("coordinator, Conclave ")
    assert command("party", "--version").startswith("party ")


def test_every_recipe_has_its_plan_there(command):
    code = "from coordinator.systems.registry import names, template\nfor name in names(): print(template('ray', name))"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    said = command("python", "-c", code)
    for name in project["entry-points"]["conclave.systems"]:
        assert f'recipe = "{name}"' in said


@pytest.mark.parametrize("command", ["by_pipx"], indirect=True)
def test_pipx_gives_both_commands(command, by_pipx):
    assert sorted(path.name for path in by_pipx.iterdir()) == ["coordinator", "party"]
    for name in ("coordinator", "party"):
        assert command(name, "--version").startswith(name)
        assert "Usage" in command(name, "--help")
    checked = {line.split()[1]: line.split()[0] for line in command("coordinator", "doctor").splitlines()}
    assert checked["libraries"] == checked["launcher"] == "ok"


@pytest.mark.parametrize("command", ["installed", "by_pipx"], indirect=True)
def test_a_plan_runs_to_its_end_there(command, tmp_path):
    words = ("balam", "dinner", "fopos", "guqui", "kerit", "losol", "mitun", "navex")
    rows = [{"text": " ".join(words[(number * step) % 8] for step in range(1, 30))} for number in range(80)]
    more = [
        {"text": f"{row['text']} {' '.join(f'{word}{letter}' for word in words for letter in 'abcdefgh')}"}
        for row in rows
    ]
    for name, content in (("letters", rows), ("public", more)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, content)))
    command("coordinator", "init", "--source", "letters.jsonl")
    plan = (tmp_path / "plan.toml").read_text()
    for old, new in PLAN:
        assert old in plan
        plan = plan.replace(old, new)
    (tmp_path / "plan.toml").write_text(plan)
    said = command("coordinator", "run", "plan.toml", "--output", "run", "--json")
    assert json.loads(said.splitlines()[-1])["verified"]
    assert "verify: ok" in said
    command("coordinator", "report", "run", "--html", "page.html")
    assert "<html" in (tmp_path / "page.html").read_text()
    assert "match the signed manifest" in command("coordinator", "verify", "run/student")
