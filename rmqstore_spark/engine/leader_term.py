"""A term in which a member of a DLedger group leads, and what became of what was put in it."""

from __future__ import annotations


class LeaderTerm:
    """A term in which this member leads.

    A put holds on to the term in which it was proposed: the same place of the log can have an entry
    of another leader later, of which nobody was told here.

    Args:
        number: the term.

    Attributes:
        number: that.
        end: physical offset up to which the log was known to be committed when the term was over;
            None as long as it is not. What was proposed behind it may be committed all the same, by
            a later leader that has it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.end: int | None = None
