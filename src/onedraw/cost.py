"""What a run has spent, as a value that adds."""

import operator
from collections.abc import Iterable
from typing import NamedTuple

from onedraw import markup


class Cost(NamedTuple):
    """Counts of work done; `plus` adds field by field.

    The first seven are part of the promise of equal bytes: the same seed gives the same counts on any machine
    layout. `surplus` (work thrown away, such as blocks begun when a run was stopped) and `seconds` are not.

    >>> Cost(simulations=3, seconds=0.5).plus(Cost(simulations=2, failed=1))
    Cost(simulations=5, setups=0, skipped=0, failed=1, proposals=0, reused=0, expensive=0, surplus=0, seconds=0.5)
    """

    simulations: int = 0
    """Pseudo-samples that were really drawn, pilot and starts included, failed ones too."""
    setups: int = 0
    """Calls of a staged simulator's `prepare`."""
    skipped: int = 0
    """Pseudo-samples that early rejection or the prior's support made unnecessary."""
    failed: int = 0
    """Simulations that raised or gave non-finite or wrong-shaped output; they count in `simulations`."""
    proposals: int = 0
    """Parameter values proposed."""
    reused: int = 0
    """Earlier simulations, of a bank that was given; they do not count in `simulations`."""
    expensive: int = 0
    """Of simulators in two parts (`od.stages`, `od.multifidelity`): second parts that were run. The first parts are
    `simulations`, which are not run beside an expensive model that always is."""
    surplus: int = 0
    """Simulations whose results were not used, or that only filled up a program of fixed size."""
    seconds: float = 0.0
    """Wall-clock time."""

    def plus(self, other: "Cost") -> "Cost":
        """The two costs added."""
        return Cost(*map(operator.add, self, other))

    @staticmethod
    def total(costs: Iterable["Cost"]) -> "Cost":
        """Several costs added.

        >>> Cost.total([Cost(simulations=3), Cost(simulations=2, failed=1)]).simulations
        5
        """
        return Cost(*map(sum, zip(*costs, strict=True)))

    def _repr_html_(self) -> str:
        """For notebooks: what was spent, without the counts that are zero."""
        spent = {name: f"{value:,}" for name, value in self._asdict().items() if value and name != "seconds"}
        spent |= {"seconds": f"{self.seconds:.3g}"} if self.seconds else {}
        return markup.block(markup.table([["", "spent"], *([name, value] for name, value in spent.items())]))
