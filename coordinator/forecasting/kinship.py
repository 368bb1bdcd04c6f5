"""Whether public text is of the parties' kind, as far as public and declared facts tell; private text is never asked.

A vocabulary, a public start and an evaluation of another kind than the parties' text spend a budget and teach nothing:
what is counted is not what is there, and what is learned is not what is measured.
"""

from coordinator.plan.plan import Plan
from coordinator.plan.public_text import SourceTable
from learning.text import documentation


def doubts(plan: Plan) -> list[str]:
    """A sentence for each reason to doubt that public text is like the parties', from what the plan says of it.

    What a recipe prepared may give more: `coordinator.systems.system.Recipe.doubts`.
    """
    tables = {name: table for name, table in plan.public_tables().items() if table.OF_THEIR_KIND}
    return [doubt for name, table in tables.items() if (doubt := _declared(plan, name, table)) is not None]


def _declared(plan: Plan, name: str, table: SourceTable) -> str | None:
    """What the plan itself says of one table and the parties' text."""
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
