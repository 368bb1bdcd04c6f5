"""The public data of a DistilDP run: the teacher's public start, and a student that can learn from it."""

from pathlib import Path

from coordinator.language_models import public as language_public
from coordinator.language_models.students import PublicTeacher, with_student
from coordinator.systems.distildp.plan import HALF, DistilDpPlan


def prepare(plan: DistilDpPlan, base: Path, cache: Path) -> PublicTeacher:
    """Load the teacher's public start and read the public text; try the student.

    Raises as `coordinator.language_models.public.prepare` and `with_student`.
    """
    return with_student(plan, language_public.prepare(plan, base, cache), base, cache, part=HALF)
