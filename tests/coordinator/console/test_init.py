"""`coordinator init` as somebody meets it at a terminal: a pseudo-terminal, and answers typed into it."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coordinator import api
from coordinator.console import shown
from coordinator.console.command import main
from coordinator.console.questions import look
from coordinator.console.questions.others import meaning
from coordinator.errors import PlanError
from coordinator.systems.registry import read_plan, template
from coordinator.systems.starting import Choices, edited, started

COMMAND = [sys.executable, "-c", "import sys; from coordinator.console.command import main; sys.exit(main())"]
NOTES = [("schöner Text", "good"), ("schlechter Text", "bad"), ("noch ein Text", "good")]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setattr(look, "PATIENCE", 0.01)
    monkeypatch.setenv("CONCLAVE_HOME", str(tmp_path / "home"))
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def notes(home):
    """A file as a spreadsheet of a German Windows saves it."""
    rows = [f"{number};{text} {number};{kind};p{number % 40}" for number in range(40) for text, kind in NOTES]
    path = home / "notes.csv"
    path.write_bytes("\r\n".join(["nr;note;kind;patient_id", *rows, ""]).encode("cp1252"))
    return path


class Terminal:
    """A `coordinator` command at a terminal of its own, in a process that has imported what this one has."""

    def __init__(self, *arguments):
        self.said, self.answered = "", 0
        self.process, self.fd = pty.fork()
        if self.process == 0:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)
            shown.out.file, shown.out._width = None, 200
            sys.stdin, sys.stdout, sys.stderr = map(io.TextIOWrapper, map(io.FileIO, (0, 1, 2), "rww"))
            code = main(list(arguments))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def until(self, mark, seconds=60.0):
        """Read until what it says since the last answer ends with `mark`, or to its end for None."""
        deadline = time.monotonic() + seconds
        while mark is None or not self.said[self.answered :].rstrip(" ").endswith(mark):
            assert time.monotonic() < deadline, self.said
            if select.select([self.fd], [], [], 0.5)[0]:
                try:
                    more = os.read(self.fd, 65536)
                except OSError:  # nobody is at the other end any more
                    more = b""
                if not more:
                    assert mark is None, self.said
                    return self
                self.said += more.decode()
        return self

    def answer(self, question, text):
        """Wait for a question and answer it."""
        self.until(f"{question}:")
        self.answered = len(self.said)
        os.write(self.fd, f"{text}\n".encode())

    def stopped(self, key):
        """Press a key until it has ended: one that comes just before it waits for an answer is not heard."""
        deadline = time.monotonic() + 60
        while not os.waitid(os.P_PID, self.process, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            assert time.monotonic() < deadline, self.said
            os.write(self.fd, key)
            time.sleep(2)
        return self.ended()

    def ended(self):
        """Its exit code, once it has ended."""
        self.until(None)
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


@pytest.mark.slow
def test_at_a_terminal_init_asks_and_writes_what_was_answered(home, notes):
    asks = Terminal("init", "mine.toml")
    asks.answer("recipe [dped]", "waltz")
    asks.answer("recipe [dped]", "3")
    asks.answer("text [here]", "")
    asks.answer("source", "nowhere.csv")
    asks.answer("source", "notes.csv")
    asks.answer("column of the text [note]", "letter")
    asks.answer("column of the text [note]", "")
    asks.answer("column of the label [kind]", "")
    asks.answer("unit [user]", "")
    asks.answer("column of the user [patient_id]", "")
    asks.answer("records [120]", "many")
    asks.answer("records [120]", "2,000")
    asks.answer("epsilon [4]", "0")
    asks.answer("epsilon [4]", "2")
    assert asks.ended() == 0
    for part in (
        "nowhere.csv does not exist.",
        'looks like encoding = "cp1252" and delimiter = ";"',
        "note        120 values of about",
        "kind        2 values: bad, good",
        'There is no column "letter"',
        "A whole number above 0",
        "A number above 0, up to 100",
        "Of 100 guesses whether it was there",
        "next: coordinator run mine.toml",
    ):
        assert part in asks.said
    plan = read_plan(Path("mine.toml"))
    shards = plan.federation.shards
    assert (plan.run.recipe, plan.privacy.epsilon, plan.privacy.unit, plan.privacy.declared_size) == (
        "dp_sgd", 2.0, "user", 2000,
    )  # fmt: skip
    assert (shards.source, shards.text, shards.label, shards.user) == ("notes.csv", "note", "kind", "patient_id")
    assert (shards.encoding, shards.delimiter) == ("cp1252", ";")
    assert (plan.text.labels, plan.text.values) == (["bad", "good"], [])
    assert "# governs the model's start" in Path("mine.toml").read_text()


@pytest.fixture
def workbook(home):
    """A workbook of two years, whose sheets have rows, and of a sheet without."""
    openpyxl = pytest.importorskip("openpyxl", reason="the extra excel is not installed")
    book = openpyxl.Workbook()
    for year in ("2023", "2024"):
        sheet = book.create_sheet(year)
        sheet.append(["note", "kind"])
        for number in range(30):
            sheet.append([f"a note of {year}, number {number}", number % 2])
    book.save(home / "notes.xlsx")


@pytest.mark.slow
def test_a_workbook_is_asked_for_its_sheet(workbook):
    asks = Terminal("init", "mine.toml")
    asks.answer("recipe [dped]", "")
    asks.answer("text [here]", "")
    asks.answer("source [documentation]", "notes.xlsx")
    asks.answer("sheet [2023]", "2025")
    asks.answer("sheet [2023]", "2024")
    asks.answer("column of the text [note]", "")
    asks.answer("unit [record]", "")
    asks.answer("epsilon [8]", "")
    assert asks.ended() == 0
    assert "It has 2 sheets with rows: 2023, 2024." in asks.said
    assert "kind  2 values: 0, 1" in asks.said
    assert "looks like" not in asks.said
    shards = read_plan(Path("mine.toml")).federation.shards
    assert (shards.source, shards.sheet, shards.encoding) == ("notes.xlsx", "2024", None)


def test_with_options_the_first_sheet_with_rows_is_taken_and_written(workbook):
    assert main(["init", "mine.toml", "--source", "notes.xlsx"]) == 0
    assert read_plan(Path("mine.toml")).federation.shards.sheet == "2023"


@pytest.mark.slow
def test_parties_elsewhere_are_asked_for_no_file(home):
    asks = Terminal("init")
    asks.answer("recipe [dped]", "")
    asks.answer("text [here]", "sites")
    asks.answer("unit [record]", "")
    asks.answer("epsilon [8]", "")
    assert asks.ended() == 0
    plan = read_plan(Path("plan.toml"))
    assert (plan.federation.launch, plan.federation.shards) == ("connect", None)


@pytest.mark.parametrize("stop", [b"\x03", b"\x04"], ids=["ctrl-c", "ctrl-d"])
def test_who_stops_answering_has_written_nothing(home, stop):
    asks = Terminal("init", "mine.toml")
    asks.answer("recipe [dped]", "")
    asks.until("text [here]:")
    assert asks.stopped(stop) == 130
    assert "Nothing was written." in asks.said
    assert "Traceback" not in asks.said
    assert list(home.iterdir()) == []


@pytest.mark.slow
def test_who_stops_during_the_forecast_has_the_whole_plan(home, monkeypatch):
    monkeypatch.setattr(look, "PATIENCE", 60.0)
    asks = Terminal("init")
    asks.answer("recipe [dped]", "")
    asks.answer("text [here]", "sites")
    asks.answer("unit [record]", "")
    asks.answer("epsilon [8]", "")
    asks.until("public text alone:\r\n")
    assert asks.stopped(b"\x03") == 130
    assert "plan.toml is written; its forecast: coordinator forecast plan.toml" in asks.said
    assert [path.name for path in home.iterdir()] == ["plan.toml"]
    assert read_plan(Path("plan.toml")).privacy.epsilon == 8.0


def test_a_plan_that_is_there_is_told_of_before_any_question(home):
    Path("plan.toml").write_text("mine")
    asks = Terminal("init")
    assert asks.ended() == 2
    assert "left alone" in asks.said
    assert "recipe" not in asks.said


def test_an_option_decides_and_nothing_is_asked(home):
    asks = Terminal("init", "--recipe", "dp_sgd")
    assert asks.ended() == 0
    assert asks.said.split() == ["wrote", "plan.toml", "next:", "coordinator", "run", "plan.toml"]
    assert Path("plan.toml").read_text() == template("ray", "dp_sgd")


@pytest.mark.slow
def test_without_a_terminal_nothing_is_asked(home):
    done = subprocess.run([*COMMAND, "init"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert done.stdout == "wrote plan.toml\nnext: coordinator run plan.toml\n"
    assert Path("plan.toml").read_text() == template("ray")


def test_options_fill_in_what_the_file_says_of_itself(home, notes):
    assert main(["init", "--recipe", "dp_sgd", "--source", "notes.csv", "--user", "patient_id", "--epsilon", "3"]) == 0
    plan = read_plan(Path("plan.toml"))
    shards = plan.federation.shards
    assert (shards.text, shards.label, shards.user, shards.encoding) == ("note", "kind", "patient_id", "cp1252")
    assert (plan.privacy.unit, plan.privacy.epsilon, plan.privacy.declared_size) == ("user", 3.0, 120)
    assert plan.dp_sgd.batch == 12


def test_python_writes_the_plan_that_options_do(home, notes):
    path = api.init("mine.toml", recipe="dp_sgd", source="notes.csv", user="patient_id", epsilon=3)
    assert path == home / "mine.toml"
    assert main(["init", "--recipe", "dp_sgd", "--source", "notes.csv", "--user", "patient_id", "--epsilon", "3"]) == 0
    assert path.read_text() == Path("plan.toml").read_text()
    with pytest.raises(PlanError, match="left alone"):
        api.init(path)
    with pytest.raises(PlanError, match="letter: the file has no such column"):
        api.init("other.toml", recipe="dp_sgd", source="notes.csv", text="letter")
    assert not Path("other.toml").exists()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--source", "none.csv"], "none.csv does not exist"),
        (["--source", "notes.csv", "--text", "letter"], "text letter: the file has no such column. Its columns are:"),
        (["--text", "note"], "Name its file, too: source."),
        (["--source", "notes.csv", "--launch", "connect"], "parties elsewhere name their own"),
        (["--epsilon", "1000"], "epsilon = 1000"),
    ],
)
def test_an_option_that_cannot_be_is_told_and_nothing_is_written(home, notes, capsys, options, says):
    assert main(["init", *options]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert list(home.iterdir()) == [notes]


def test_a_forecast_that_takes_longer_is_left_to_its_command(home, capsys):
    Path("plan.toml").write_text(template("ray"))
    look.show(Path("plan.toml"), patience=0.01)
    assert "coordinator forecast plan.toml" in capsys.readouterr().out


@pytest.mark.slow
def test_a_forecast_is_shown_when_it_is_there(home, capsys):
    Path("plan.toml").write_text(template("ray"))
    look.show(Path("plan.toml"), patience=120)
    said = capsys.readouterr().out
    assert "dped · 4 parties" in said
    assert "moments" in said
    assert "of 8 at delta 1e-06" in said


@pytest.mark.slow
def test_what_a_forecast_lacks_is_said(home, capsys):
    Path("plan.toml").write_text(started(Choices("dped", source="gone.csv", text="note")).replace(
        '"documentation-topics"', '"gone.txt"'
    ))  # fmt: skip
    look.show(Path("plan.toml"), patience=120)
    said = capsys.readouterr().out
    assert "None yet: gone.txt does not exist" in said
    assert "Traceback" not in said


@pytest.mark.slow
def test_an_epsilon_is_said_in_words_that_follow_from_it():
    assert "about 2.72 times as likely with one record" in meaning(1.0, 1e-6, "record")
    assert "Of 100 guesses whether it was there, at most 74 are right" in meaning(1.0, 1e-6, "record")
    assert "one person's text" in meaning(4.0, 1e-6, "user")
    assert "strong" in meaning(1.0, 1e-6, "record")
    assert "weak" in meaning(20.0, 1e-6, "record")


def test_edits_keep_the_other_lines_and_their_comments():
    text = '[a]\nb = 1   # one\n          # and more\nc = "x"\n\n# [d]\n# b = 7\n[e]\nb = 2\n'
    assert edited(text, "a", "b", "10") == text.replace("b = 1   #", "b = 10  #")
    assert edited(text, "a", "b", "3", bare=True) == text.replace("b = 1   # one\n          # and more", "b = 3")
    assert edited(text, "a", "b", None) == text.replace("b = 1   # one\n          # and more\n", "")
    assert edited(text, "e", "z", "3", after="b").endswith("[e]\nb = 2\nz      = 3\n")
    assert edited(text, "e", "z", "3") == text
    assert edited(text, "nowhere", "b", "3") == text


def test_codes_that_nothing_is_said_of_are_left_out():
    plan = started(Choices("distildp", source="x.csv", text="note"))
    assert "[codes" not in plan
    assert "code_tilt" not in plan
    assert 'column = "ward"' in started(Choices("distildp", source="x.csv", label="ward", labels=("a", "b")))
