"""Which prompts of the beam get how many children."""

from collections.abc import Sequence

from lightning_apo.candidate import Candidate


def branches_of(beam: Sequence[Candidate], *, beam_width: int, branch_factor: int) -> dict[Candidate, int]:
    """Say how many children each prompt of the beam gets.

    Every place of the beam gives `branch_factor` children. Places that are still empty go to the prompts that are
    there, the best ones first, so that a search that starts from one prompt begins as broadly as it goes on.
    """
    branches = dict.fromkeys(beam, 0)
    for place in range(beam_width):
        branches[beam[place % len(beam)]] += branch_factor
    return branches
