"""Drives the submissions: starts those that may start, takes up those that were left, follows all to their end."""

import asyncio
import json
import logging
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from coordinator.errors import PlanError, RunError
from coordinator.serving import child as children
from coordinator.serving.admitting import admitted
from coordinator.serving.child import Child
from coordinator.serving.config import Located, ServeConfig
from coordinator.serving.outcome import Outcome, begun, outcome, spent
from coordinator.serving.scheduling import startable
from coordinator.serving.submissions import (
    CANCELLED,
    FAILED,
    KEPT_FAILURES,
    OPEN,
    QUEUED,
    RUNNING,
    STOPPED,
    Submission,
    Submissions,
)
from coordinator.store.private_files import write_whole
from protos.console.checklist import free_disk, size

log = logging.getLogger("conclave.coordinator")

LOOK_SECONDS: Final = 0.2
"""Seconds between two looks at a process."""
QUEUE_SECONDS: Final = 2.0
"""Seconds after which the queue is looked at again, where nothing woke it: the disk may have room now."""
AT_ONCE_SECONDS: Final = 20.0
"""Seconds that a process has to end once it was told twice."""
CANCEL_TRIES: Final = 3
SLACK: Final = 20
"""How many more failures than are kept come together before any is forgotten: looking at each takes time."""


class Runner:
    """The processes of the submissions. All of it happens on one event loop."""

    def __init__(self, config: ServeConfig, located: Located, submissions: Submissions) -> None:
        self._config = config
        self._located = located
        self._submissions = submissions
        self._children: dict[str, Child] = {}
        self._following: dict[str, asyncio.Task[None]] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._hurry = asyncio.Event()
        self.draining = False

    def folder(self, submission: Submission) -> Path:
        """Everything of a submission."""
        return self._located.keep / "submissions" / submission.id

    @property
    def hidden(self) -> tuple[Path, ...]:
        """Paths of this machine that no submitter reads."""
        return (self._located.keep / "submissions", self._located.public, self._located.keep, self._located.identity)

    def wake(self) -> None:
        """Look at the queue soon."""
        self._wake.set()

    def recover(self) -> None:
        """Take up what an earlier coordinator left: follow processes that live, and queue what has none."""
        for each in self._submissions.in_states(RUNNING):
            folder = self.folder(each)
            if children.alive(folder):
                log.info("submission %s still has its process", each.id, extra={"event": "adopted", "run": each.id})
                self._follow(each, Child(folder))
            else:
                self._conclude(each, outcome(folder, None, draining=True, hidden=self.hidden))
        for each in self._submissions.in_states(*OPEN):
            if each.cancelling:
                self._end(each)

    async def run(self) -> None:
        """Start what may start, until this is cancelled."""
        while True:
            self._wake.clear()
            if not self.draining:
                await self._start_some()
            try:
                async with asyncio.timeout(QUEUE_SECONDS):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def cancel(self, submission: Submission) -> Submission:
        """End a submission for good. Its intent is on disk when this returns; its run may take a moment to end."""
        submission = self._submissions.change(submission.id, cancelling=1)
        self._end(submission)
        return self._submissions.get(submission.id)

    async def drain(self) -> None:
        """Start nothing more, and have every process stop when the block in hand is stored; its run goes on later."""
        self.draining = True
        for task in self._ending.values():
            task.cancel()
        self._interrupt()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.drain_seconds):
                while self._following and not self._hurry.is_set():
                    await asyncio.sleep(LOOK_SECONDS)
        self._interrupt()
        if await self._all_ended(AT_ONCE_SECONDS):
            return
        for child in self._children.values():
            child.kill()
        await self._all_ended(AT_ONCE_SECONDS)

    def at_once(self) -> None:
        """Have a drain that goes on wait no longer for blocks in hand."""
        self._hurry.set()

    def _interrupt(self) -> None:
        for child in self._children.values():
            child.interrupt()

    async def close(self) -> None:
        """Follow nothing more; processes that live are left alone."""
        tasks = [*self._following.values(), *self._ending.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _all_ended(self, seconds: float) -> bool:
        if self._following:
            await asyncio.wait(list(self._following.values()), timeout=seconds)
        return not self._following

    async def _start_some(self) -> None:
        running = self._submissions.in_states(RUNNING)
        queued = [each for each in self._submissions.in_states(QUEUED) if not each.cancelling]
        for each in startable(queued, running, self._config.submit.running):
            try:
                await self._start(each)
            except RunError as error:
                log.error("submission %s: %s", each.id, error, extra={"event": "not-started", "run": each.id})
                with suppress(RunError):  # where not even that can be written, the log has it
                    self._say(each, f"it waits: {children.told(str(error), *self.hidden)}")
            except Exception:  # a bug that one plan shows must not keep others from starting
                log.exception("submission %s cannot be started", each.id, extra={"event": "failed", "run": each.id})
                self._conclude(each, Outcome(FAILED, "the coordinator failed to start it; its own log says why."))

    async def _start(self, submission: Submission) -> None:
        """Start a queued submission, or say in its row why it waits, or fails. Raises `RunError`."""
        free, spare = free_disk(self._located.keep), self._config.submit.spare
        if free < spare:
            self._say(
                submission, f"it waits for room on the coordinator's disk: {size(free)} free, {size(spare)} wanted."
            )
            return
        try:
            plan = await asyncio.to_thread(admitted, submission.plan, self._config, self._located)
        except PlanError as error:
            self._conclude(submission, Outcome(FAILED, f"the coordinator takes this plan no more: {error}"))
            return
        now = self._submissions.get(submission.id)
        if self.draining or now.state != QUEUED or now.cancelling:  # meanwhile
            return
        folder = self.folder(submission)
        files = ["--files", str(self._located.public)]
        if begun(folder):
            arguments = ["resume", str(folder / children.RUN), *files]
        else:
            output = ["--output", str(folder / children.RUN), "--replace"]
            arguments = ["run", str(folder / children.PLAN), *output, *files, "--spare", str(spare)]
        write_whole(folder / children.PLAN, plan.file.encode())
        began = {} if submission.began else {"began": time.time()}
        submission = self._submissions.change(submission.id, state=RUNNING, why="", asks=json.dumps(plan.asks), **began)
        try:
            child = children.start(folder, self._located.keep, arguments)
        except RunError:
            self._submissions.change(submission.id, state=QUEUED)
            raise
        log.info("submission %s began", submission.id, extra={"event": "began", "run": submission.id})
        self._follow(submission, child)

    def _follow(self, submission: Submission, child: Child) -> None:
        self._children[submission.id] = child
        self._following[submission.id] = asyncio.create_task(self._followed(submission, child))

    async def _followed(self, submission: Submission, child: Child) -> None:
        """Wait for a process to end, and conclude from its run's store."""
        try:
            while not child.ended:
                await asyncio.sleep(LOOK_SECONDS)
            while submission.id in self._ending:  # whoever cancels it concludes
                await asyncio.sleep(LOOK_SECONDS)
            while not self._took(submission, child):
                await asyncio.sleep(QUEUE_SECONDS)
        finally:
            self._following.pop(submission.id, None)
            self._children.pop(submission.id, None)

    def _took(self, submission: Submission, child: Child) -> bool:
        """Conclude from the end of a process; False where the disk does not take it now."""
        try:
            now = self._submissions.get(submission.id)
            if now.state != RUNNING:
                return True
            asked = self.draining or child.interrupts > 0
            before = (now.tries, now.reached)
            found = outcome(child.folder, child.code, *before, draining=asked, hidden=self.hidden)
            self._conclude(now, found)
            if now.cancelling and found.state in OPEN and not self.draining:
                self._end(self._submissions.get(now.id))
            return True
        except RunError as error:
            log.error("submission %s: %s", submission.id, error, extra={"event": "not-stored"})
            return self.draining

    def _conclude(self, submission: Submission, found: Outcome) -> None:
        ended = {} if found.state in OPEN else {"ended": time.time()}
        row = {"state": found.state, "why": found.why, "tries": found.tries, "reached": found.reached}
        self._submissions.change(submission.id, **row, **ended)
        if found.state == FAILED:
            self._forget()
        log.info(
            "submission %s is %s",
            submission.id,
            found.state,
            extra={"event": "concluded", "run": submission.id, "state": found.state},
        )
        self.wake()

    def _forget(self) -> None:
        """Forget old submissions that failed before they had a run, so that plans that fail fill no disk."""
        failed = self._submissions.in_states(FAILED)
        if len(failed) > KEPT_FAILURES + SLACK:
            for gone in self._submissions.forget([each.id for each in failed if begun(self.folder(each))]):
                shutil.rmtree(self._located.keep / "submissions" / gone, ignore_errors=True)

    def _say(self, submission: Submission, why: str) -> None:
        if submission.why != why:
            self._submissions.change(submission.id, why=why)

    def _end(self, submission: Submission) -> None:
        """Carry out a cancellation that is on disk."""
        if submission.id in self._ending:
            return
        if submission.state == QUEUED and not begun(self.folder(submission)):
            self._conclude(submission, Outcome(CANCELLED, "it was cancelled before it began; nothing was spent."))
            return
        self._ending[submission.id] = asyncio.create_task(self._ended(submission))

    async def _ended(self, submission: Submission) -> None:
        """Stop a run's process, and have its parties forget the run."""
        folder = self.folder(submission)
        try:
            said, child = "", self._children.get(submission.id)
            for _ in range(CANCEL_TRIES):
                if not await asyncio.to_thread(begun, folder):
                    if child is not None and not child.ended:
                        child.interrupt()
                        await self._until_ended(child)
                        continue
                    said = "it was cancelled before it asked anybody; nothing was spent."
                    break
                said = await asyncio.to_thread(self._cancelled, folder)
                if child is not None:
                    await self._until_ended(child)
                now = outcome(folder, 0, draining=False, hidden=self.hidden)
                if now.state not in OPEN:
                    self._conclude(submission, Outcome(now.state, said if now.state == CANCELLED else now.why))
                    return
            else:
                charged = " What it was charged for stays charged." if spent(folder) else ""
                log.error("submission %s: %s", submission.id, said, extra={"event": "not-cancelled"})
                self._conclude(submission, Outcome(CANCELLED, f"{said or 'it was stopped.'}{charged}"))
                return
            self._conclude(submission, Outcome(CANCELLED, said))
        except RunError as error:
            self._conclude(submission, Outcome(STOPPED, children.told(str(error), *self.hidden)))
        finally:
            self._ending.pop(submission.id, None)

    async def _until_ended(self, child: Child) -> None:
        while not child.ended:
            await asyncio.sleep(LOOK_SECONDS)

    def _cancelled(self, folder: Path) -> str:
        """Run `coordinator cancel` on a submission's run; what it said."""
        done = subprocess.run(
            [*children.COMMAND, "cancel", str(folder / children.RUN)],
            cwd=folder / children.WORK,
            env=children.environment(self._located.keep),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            start_new_session=True,
        )
        said = (done.stdout if done.returncode == 0 else done.stderr).decode(errors="replace")
        return children.told(said, *self.hidden)
