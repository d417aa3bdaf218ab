"""The learner of several nodes, started by the very commands that the pods of the multi-node overlay run."""

import asyncio
import json
import socket
import subprocess
from pathlib import Path

from torch.distributed.run import get_args_parser

from store.acl import rules
from store.client import Store
from store.keys import Keys
from store.server import EmbeddedServer
from tests.learner.scripted import ScriptedActor, problems, tiny_llama
from tests.ops.deployment import KUBERNETES, containers, rendered, run_toml
from tests.ops.serving import write_tokenizer
from tests.ops.stage import with_verge

STEPS = 3
PASSWORD = "the learner's own"
INDEX = "$(JOB_COMPLETION_INDEX)"
"""What an indexed Job sets in each of its pods, and the kubelet puts into the command."""


def here(words: list[str], folder: Path, port: int) -> list[str]:
    """A pod's command with the addresses and files of this machine, and one rank a node."""
    text = " ".join(words)
    for theirs, ours in {
        "tini -- ": "",
        "--nproc-per-node=8": "--nproc-per-node=1",
        "--master-addr=learner-0.learner": "--master-addr=127.0.0.2",  # not the address that the other node has
        "--master-port=29500": f"--master-port={port}",
        "/config/run.toml": str(folder / "run.toml"),
    }.items():
        assert theirs in text
        text = text.replace(theirs, ours)
    return text.split()


def small(folder: Path, server: EmbeddedServer) -> dict[str, object]:
    """What differs from the overlay's run.toml: model, problems and sizes that two cores train on in seconds."""
    write_tokenizer(tiny_llama(folder / "model"))
    rows = [{"id": p.id, "prompt": p.prompt, "verifier": "exact", "answer": "0"} for p in problems(16)]
    (folder / "problems.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder / "password").write_text(PASSWORD)
    return {
        "folder": folder / "run",
        "store.url": f"redis://demo-learner@127.0.0.1:{server.info.port}/0",
        "store.password_file": folder / "password",
        "metrics.learner_port": 0,  # both nodes listen at 0.0.0.0
        "model.path": folder / "model",
        "problems.source": folder / "problems.jsonl",
        "problems.train_count": 12,
        "problems.held_out_count": 4,
        "sampling.max_completion_tokens": 3,
        "actor.context_tokens": 64,
        "learner.steps": STEPS,
        "learner.groups_per_step": 4,
        "learner.micro_batch_tokens": 256,
        "learner.dtype": "fp32",
        "learner.threads": 1,
    }


def test_the_pods_are_the_nodes_and_their_gpus_the_ranks_and_they_meet_at_the_first_pod() -> None:
    manifests = rendered(KUBERNETES / "overlays" / "multi-node")
    (job,) = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == ("Job", "learner")]
    (service,) = [m for m in manifests if (m["kind"], m["metadata"]["name"]) == ("Service", "learner")]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    words = [*container["command"], *container["args"]]
    arguments = [word.replace(INDEX, "1") for word in words[words.index("torchrun") + 1 :]]
    given = get_args_parser().parse_args(arguments)
    assert given.nnodes == str(job["spec"]["completions"]) == str(job["spec"]["parallelism"])
    assert given.nproc_per_node == container["resources"]["limits"]["nvidia.com/gpu"]
    assert given.node_rank == 1
    assert job["spec"]["completionMode"] == "Indexed"
    assert given.master_addr == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert given.master_port == service["spec"]["ports"][0]["port"]
    assert given.no_python
    assert [given.training_script, *given.training_script_args] == ["verge", *container["args"]]


def test_two_nodes_meet_by_the_command_of_the_overlay_and_train_to_the_end(tmp_path: Path) -> None:
    manifests = rendered(KUBERNETES / "overlays" / "multi-node")
    (container,) = [c for workload, _, c in containers(manifests) if workload == "learner"]
    (tmp_path / "run.toml").write_text(run_toml(manifests))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = here([*container["command"], *container["args"]], tmp_path, port)
    environment = with_verge(tmp_path) | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with EmbeddedServer(tmp_path) as server:
        asyncio.run(admit(server))
        words += [word for name, value in small(tmp_path, server).items() for word in ("--set", f"{name}={value}")]
        nodes = [
            subprocess.Popen(
                [word.replace(INDEX, str(index)) for word in words],
                env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for index in (1, 0)  # a node that comes first waits for the one where they meet
        ]  # fmt: skip
        try:
            actor = ScriptedActor(server.url, "demo", server.password, tmp_path / "model", 8)
            actor.start()
            said = [node.communicate(timeout=300)[1] for node in nodes]
            actor.stop()
        finally:
            for node in nodes:
                node.kill()
        assert [node.returncode for node in nodes] == [0, 0], "\n".join(said)[-4000:]
        phase, history = asyncio.run(what_is_stored(server))
    assert phase == ("done", f"all {STEPS} steps are taken")
    assert [(row["step"], row["version"], row["groups"]) for row in history] == [(s, s, 4) for s in (1, 2, 3)]
    assert ["learner-1: metrics at http://" in text for text in said] == [True, False], "each node is one of two ranks"


async def admit(server: EmbeddedServer) -> None:
    """Make the store's user that the manifest names."""
    store = await Store.connect(server.url, "demo", server.password)
    try:
        user = ("ACL SETUSER", "demo-learner", "on", f">{PASSWORD}", *rules(Keys("demo"), "learner"))
        await store.link.redis.execute_command(*user)
    finally:
        await store.close()


async def what_is_stored(server: EmbeddedServer) -> tuple[tuple[str, str], list[dict[str, float]]]:
    store = await Store.connect(server.url, "demo", server.password)
    try:
        return await store.phase(), list(await store.dynamics_history(10))
    finally:
        await store.close()
