"""A three-node Redis Cluster of this machine, for the tests."""

import secrets
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

import redis

SLOTS = 16384
NODES = 3


class Cluster:
    """Three nodes with a third of the slots each; where a test asks for a server's URL and password it has both.

    with Cluster(folder, binary) as cluster:
        store = await Store.connect(cluster.url, "demo", cluster.password)
    """

    def __init__(self, folder: Path, binary: str) -> None:
        self._folder = folder
        self._binary = binary
        self.password = secrets.token_urlsafe(12)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        """One node: clients find the others through it."""
        return f"redis://127.0.0.1:{self._ports[0]}"

    def clients(self) -> list[redis.Redis]:
        """One client per node."""
        return [redis.Redis(port=port, password=self.password, protocol=2) for port in self._ports]

    def __enter__(self) -> Self:
        ports = _free_ports(2 * NODES)
        self._ports, self._bus_ports = ports[:NODES], ports[NODES:]
        try:
            for number in range(NODES):
                self._processes.append(self._launch(number))
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _launch(self, number: int) -> subprocess.Popen[bytes]:
        folder = self._folder / str(number)
        folder.mkdir(parents=True)
        settings = f"""
            port {self._ports[number]}
            bind 127.0.0.1
            requirepass {self.password}
            cluster-enabled yes
            cluster-port {self._bus_ports[number]}
            cluster-node-timeout 5000
            save ""
            dir {folder}
            logfile {folder}/log
        """
        process = subprocess.Popen([self._binary, "-"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert process.stdin is not None
        with process.stdin as pipe:
            pipe.write(settings.encode())
        return process

    def _join(self) -> None:
        clients = self.clients()
        deadline = time.monotonic() + 30
        bounds = [SLOTS * i // NODES for i in range(NODES + 1)]
        for number, client in enumerate(clients):
            while True:
                with suppress(redis.exceptions.ConnectionError):
                    client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                    break
                assert time.monotonic() < deadline, "a node did not start"
                time.sleep(0.02)
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
        for port, bus in zip(self._ports[1:], self._bus_ports[1:], strict=True):
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", port, bus)
        while not all(_joined(client) for client in clients):
            assert time.monotonic() < deadline, "the nodes did not join"
            time.sleep(0.05)
        for client in clients:
            client.close()

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def _joined(client: redis.Redis) -> bool:
    said = client.execute_command("CLUSTER INFO")
    return (said["cluster_state"], said["cluster_known_nodes"]) == ("ok", str(NODES))


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()
