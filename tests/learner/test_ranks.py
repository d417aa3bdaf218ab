"""A learner's process and those that it starts."""

import os
import subprocess
import sys

from learner.ranks import Ranks

ALONE = "from learner.ranks import Ranks; import os; Ranks(); print(os.environ['MASTER_PORT'])"


def test_what_a_learner_without_torchrun_starts_is_a_learner_of_its_own() -> None:
    """It inherits the variables, and would otherwise listen where its parent does."""
    assert Ranks().world == 1
    said = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, check=True, timeout=300)
    assert said.stdout.strip().isdigit()
    assert said.stdout.strip() != os.environ["MASTER_PORT"]
