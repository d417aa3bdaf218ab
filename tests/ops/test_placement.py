"""Which GPUs each process of `verge up` is given, and which placements are refused before anything starts."""

import socket
import sys
import time
from pathlib import Path

import psutil
import pytest

from ops.children import Child
from ops.cli import main
from ops.config import RunConfig, fingerprint, parse_config
from ops.doctor import examine
from ops.launcher import children_of
from ops.placement import VERGE, environment_of, gpus_here, ranks_program
from store.errors import VergeError

MINIMAL = {"name": "r", "model": {"path": "tiny"}, "problems": {"source": "builtin:countdown"}}


def config(placement: dict[str, object] | None, **sections: object) -> RunConfig:
    given = {} if placement is None else {"placement": placement}
    return parse_config({**MINIMAL, **sections, **given}, "run.toml")


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ({"learner": [0], "actors": [[1]]}, "placement.actors has GPUs for 1 actors, but actor.count is 2"),
        ({"learner": [0], "actors": [[2, 3], [4]]}, "gives actor-1 1 GPUs, but its engine takes 2"),
        ({"learner": [0, 1], "actors": [[2, 3], [1, 4]]}, "placement gives GPU 1 to learner and actor-1: a GPU has"),
        ({"learner": [0], "actors": [[2, 2], [3, 4]]}, "placement gives GPU 2 to actor-0 and actor-0"),
        (
            {"learner": list(range(10, 15)), "actors": [[0, 1], [2, 3]]},
            "learner has 5 GPUs, but a step has 4 groups",
        ),
        ({"learner": [], "actors": [[0, 1], [2, 3]]}, "placement.learner"),
        ({"learner": [-1], "actors": [[0, 1], [2, 3]]}, "placement.learner.0 is -1"),
    ],
)
def test_a_placement_that_cannot_work_is_refused_with_the_fix(placement: dict[str, object], message: str) -> None:
    sections = {"actor": {"count": 2, "tensor_parallel": 2}, "learner": {"groups_per_step": 4}}
    with pytest.raises(VergeError) as refused:
        config(placement, **sections)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_every_process_sees_its_own_gpus_and_a_learner_of_several_runs_as_ranks(tmp_path: Path) -> None:
    placed = config({"learner": [0, 3], "actors": [[2], [1]]}, actor={"count": 2}, learner={"threads": 4})
    learner, first, second = children_of(placed, tmp_path)
    assert learner.environment == {
        "CUDA_VISIBLE_DEVICES": "0,3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID", "OMP_NUM_THREADS": "4",
    }  # fmt: skip
    assert "--nproc-per-node=2" in learner.program
    assert (first.name, first.environment["CUDA_VISIBLE_DEVICES"], first.program) == ("actor-0", "2", VERGE)
    assert (second.name, second.environment["CUDA_VISIBLE_DEVICES"]) == ("actor-1", "1")
    alone, actor = children_of(config(None), tmp_path)
    assert alone.environment == actor.environment == {}, "without the section, nothing changes"
    assert alone.program == VERGE


def test_a_child_has_the_environment_of_its_gpus_and_every_rank_runs(tmp_path: Path) -> None:
    says = "import os; e = os.environ; print(e['CUDA_VISIBLE_DEVICES'], e['CUDA_DEVICE_ORDER'])"
    seen = Child("seen", [], tmp_path / "seen.log", environment_of([2, 5]), (sys.executable, "-c", says))
    ranks = Child("ranks", ["config", "show", "--help"], tmp_path / "ranks.log", program=ranks_program(2, "r"))
    for child in (seen, ranks):
        child.start()
    for child in (seen, ranks):
        assert child.process is not None
        assert child.process.wait(300) == 0
    assert seen.log.read_text() == "2,5 PCI_BUS_ID\n"
    assert ranks.log.read_text().count("Print the effective config") == 2


def test_ranks_end_with_the_torchrun_that_started_them_even_if_it_is_killed(tmp_path: Path, tiny_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = free.getsockname()[1]  # where no store is, for which the ranks wait
    file = tmp_path / "run.toml"
    file.write_text(f'name = "r"\nfolder = "{tmp_path}"\n[model]\npath = "{tiny_model}"\n[problems]\n'
                    f'[store]\nurl = "redis://127.0.0.1:{nobody}/0"\npatience_s = 3600\n'
                    "[sampling]\nmax_completion_tokens = 8\n[actor]\ncontext_tokens = 32\n")  # fmt: skip
    ranks = Child("learner", ["learner", str(file)], tmp_path / "learner.log", program=ranks_program(2, "r"))
    ranks.start()
    try:
        assert ranks.process is not None
        torchrun = psutil.Process(ranks.process.pid)
        deadline = time.monotonic() + 300
        while ranks.log.read_text().count("store: waiting for") < 4:  # both wait, each says so every 5 s
            assert ranks.exit_status is None, ranks.log.read_text()
            assert time.monotonic() < deadline, ranks.log.read_text()
            time.sleep(0.1)
        both = torchrun.children(recursive=True)
        assert len(both) == 2
        torchrun.kill()
        _, left = psutil.wait_procs(both, timeout=120)
        assert left == []
    finally:
        ranks.terminate(0)


def test_gpus_are_those_of_the_driver_that_cuda_visible_devices_leaves(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:41:00.0", "0000:81:00.0"):
        (tmp_path / name).mkdir()
    assert gpus_here({}, tmp_path) == (0, 1, 2)
    assert gpus_here({"CUDA_VISIBLE_DEVICES": "2, 0,7"}, tmp_path) == (0, 2)
    assert gpus_here({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()
    assert gpus_here({}, tmp_path / "absent") == ()


def test_a_gpu_that_is_not_here_ends_verge_up_before_anything_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    placed = config({"learner": [0], "actors": [[9]]})
    assert placed.placement is not None
    with pytest.raises(VergeError, match=r"placement gives GPU 9 to actor-0, but this machine has GPUs 0, 1 for us"):
        placed.placement.check((0, 1))
    file, folder = tmp_path / "run.toml", tmp_path / "folder"
    file.write_text(f'name = "r"\nfolder = "{folder}"\n[model]\npath = "tiny"\n[problems]\n'
                    "[placement]\nlearner = [98]\nactors = [[99]]\n")  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["verge", "up", str(file)])
    with pytest.raises(SystemExit, match=r"verge: placement gives GPU 98 to learner, but this machine has .* for us"):
        main()
    assert not folder.exists()
    (finding,) = [found for found in examine(config({"learner": [98], "actors": [[99]]})) if found.name == "placement"]
    assert not finding.ok


def test_where_processes_run_may_change_when_a_run_is_resumed() -> None:
    before = fingerprint(config(None))
    assert fingerprint(config({"learner": [0], "actors": [[1]]})) == before
    assert fingerprint(config(None, metrics={"actor_port": 0}, track={"kind": "wandb"})) == before
