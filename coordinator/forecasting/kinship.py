"""Whether public text is of the same kind as the parties' text, as far as public and declared facts tell.

A vocabulary, a public start or an evaluation of another kind of text wastes the budget: the words that are counted do
not occur, and what is learned is not what is measured. Private text is never asked.
"""

from coordinator.plan.plan import Plan
from coordinator.plan.public_text import SourceTable
from learning.text import documentation


def doubts(plan: Plan) -> list[str]:
    """A sentence for each reason in the plan to doubt that its public text is like the parties'.

    The public data of a recipe may give more reasons: `coordinator.systems.system.Recipe.doubts`.
    """
    tables = {name: table for name, table in plan.public_tables().items() if table.OF_THEIR_KIND}
    return [doubt for name, table in tables.items() if (doubt := _declared(plan, name, table)) is not None]


def _declared(plan: Plan, name: str, table: SourceTable) -> str | None:
    """The doubt that the plan's own words on one table and on the parties' text give."""
    shards, built_in = plan.federation.shards, table.source in documentation.NAMES
    if table.like_parties or (shards is not None and (shards.source in documentation.NAMES) == built_in):
        return None
    learns = (
        "what is measured on it says nothing of theirs" if name == "evaluation" else "little is learned from theirs"
    )
    cure = f"Name public text of their kind in [{name}], and say so there: like_parties = true."
    if built_in:
        return (
            f"[{name}] {table.source} is Python's documentation. Where parties hold text of another kind, {learns}, "
            f"and the run is paid for all the same. {cure}"
        )
    if shards is not None and shards.source in documentation.NAMES:
        return f"[{name}] {table.source} is a file, and the parties' text is Python's documentation: {learns}."
    if shards is None:
        return (
            f"[{name}] nobody has said that {table.source} is text of the kind that the parties hold. Else {learns}. "
            f"{cure}"
        )
    return None
