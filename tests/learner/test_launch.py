"""The command that starts a learner of several nodes, and the shapes that are refused."""

import pytest
from torch.distributed.run import get_args_parser

from learner.launch import check_world, launch_command
from store.errors import VergeError

PROGRAM = ["verge", "learner", "my run.toml", "--set", "learner.lr=2e-5"]


def test_torchrun_understands_the_command() -> None:
    torchrun, *arguments = launch_command(2, 8, "node-0:29500", "demo", PROGRAM)
    assert torchrun == "torchrun"
    parsed = get_args_parser().parse_args(arguments)
    assert (parsed.nnodes, parsed.nproc_per_node) == ("2", "8")
    assert (parsed.rdzv_backend, parsed.rdzv_endpoint, parsed.rdzv_id) == ("c10d", "node-0:29500", "demo")
    assert parsed.no_python
    assert [parsed.training_script, *parsed.training_script_args] == PROGRAM
    alone = get_args_parser().parse_args(launch_command(1, 2, None, "demo", PROGRAM)[1:])
    assert alone.standalone
    assert (alone.nnodes, alone.nproc_per_node) == ("1", "2")


@pytest.mark.parametrize("rendezvous", ["node-0", "node-0:", ":29500", "node-0:99999", "node-0:x"])
def test_a_rendezvous_is_a_host_and_a_port(rendezvous: str) -> None:
    with pytest.raises(VergeError, match="is not HOST:PORT"):
        launch_command(2, 1, rendezvous, "demo", PROGRAM)


def test_several_nodes_need_a_place_to_meet() -> None:
    with pytest.raises(VergeError, match=r"--nodes is 2, .* add --rendezvous"):
        launch_command(2, 1, None, "demo", PROGRAM)


def test_more_ranks_than_groups_are_refused_with_the_arithmetic() -> None:
    check_world(9, 8)  # they need not divide
    with pytest.raises(VergeError, match=r"groups_per_step is 5 but must be ≥ 8 .* 3 ranks would have nothing"):
        check_world(5, 8)
