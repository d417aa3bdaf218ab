"""The command that starts the learner's ranks, on one node or several."""

from collections.abc import Sequence

from store.errors import VergeError


def launch_command(
    nodes: int, ranks_per_node: int, rendezvous: str | None, run: str, program: Sequence[str]
) -> list[str]:
    """The command that every node of a learner runs, each the same.

    Args:
        rendezvous: HOST:PORT that all nodes reach, HOST one of them; only several nodes need one.
        run: its name; nodes with another are not let in.
        program: what each rank executes.

    Raises:
        VergeError: there is no rendezvous where one is needed, or it is not HOST:PORT.

    >>> " ".join(launch_command(2, 8, "node-0:29500", "demo", ["verge", "learner", "demo.toml"]))[:52]
    'torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backen'
    """
    torchrun = ["torchrun", f"--nnodes={nodes}", f"--nproc-per-node={ranks_per_node}"]
    if nodes == 1:
        where = ["--standalone"]
    else:
        if rendezvous is None:
            raise VergeError(
                f"--nodes is {nodes}, and they need a place to meet: add --rendezvous HOST:PORT, HOST one of them"
            )
        host, _, port = rendezvous.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise VergeError(f"--rendezvous {rendezvous!r} is not HOST:PORT with a port from 1 to 65535")
        where = ["--rdzv-backend=c10d", f"--rdzv-endpoint={rendezvous}", f"--rdzv-id={run}"]
    return [*torchrun, *where, "--no-python", *program]


def check_world(groups_per_step: int, ranks: int) -> None:
    """VergeError where some rank could never have a group of its own.

    More groups than ranks need not divide: they are shared out by tokens, and a mean is over all of them.
    """
    if groups_per_step < ranks:
        raise VergeError(
            f"learner.groups_per_step is {groups_per_step} but must be ≥ {ranks} (= ranks of the learner): in every"
            f" step {ranks - groups_per_step} ranks would have nothing to train on; raise it or start fewer ranks"
        )
