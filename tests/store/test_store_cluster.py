"""What only a cluster can show; all other tests of the store run on it too."""

import asyncio

import pytest

from store.client import Store
from store.errors import VergeError
from tests.store.cluster import Cluster
from tests.store.scripted import Opened, group, play, problems


@pytest.mark.parametrize("server", ["cluster"], indirect=True)
def test_the_control_plane_is_on_one_node_and_payloads_are_on_all(server: Cluster) -> None:
    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"] * 60, limit=60)
        tickets = await store.take("a", 60)
        made = [group(ticket, [1, 0], version=i) for i, ticket in enumerate(tickets)]
        assert await asyncio.gather(*(store.commit("a", one) for one in made)) == ["committed"] * 60
        controlling, paying = [], []
        for client in server.clients():
            names = [key for key in client.keys("*") if store.keys.run.encode() in key]
            controlling.append(any(name.startswith(b"{") for name in names))
            paying.append(sum(b":payload:" in name for name in names))
            client.close()
        assert sum(controlling) == 1
        assert sum(paying) == 60
        assert min(paying) > 5, "payloads spread over all nodes"
        found = await store.fetch([ticket.id for ticket in tickets])
        assert [found[ticket.id].version_min for ticket in tickets] == list(range(60))  # type: ignore[union-attr]

    play(server, body)


@pytest.mark.parametrize("server", ["cluster"], indirect=True)
def test_a_payload_that_its_node_refuses_commits_nothing(server: Cluster) -> None:
    """The script is on another node: it must not run before the payload is there."""

    async def body(store: Store, _: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"] * 8, limit=8)
        tickets = await store.take("a", 8)
        full = []
        for client in server.clients():
            if not any(key.startswith(f"{{{store.keys.run}}}".encode()) for key in client.keys("*")):
                client.config_set("maxmemory", 1)
                full.append(client)
        assert len(full) == 2
        try:
            commits = [store.commit("a", group(ticket, [1, 0])) for ticket in tickets]
            refused = await asyncio.gather(*commits, return_exceptions=True)
        finally:
            for client in full:
                client.config_set("maxmemory", 0)
                client.close()
        assert all(isinstance(error, VergeError) and "memory limit" in str(error) for error in refused)
        assert (await store.counters())["committed"] == 0
        assert [await store.commit("a", group(ticket, [1, 0])) for ticket in tickets] == ["committed"] * 8

    play(server, body)
