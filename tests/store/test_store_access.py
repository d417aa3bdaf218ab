"""Who may do what: an ACL per role, and TLS with an authority of the test's own."""

import asyncio
import datetime
import ipaddress
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ops.cli import main
from ops.config import RunConfig, parse_config
from ops.runfolder import store_endpoint
from store.acl import Role, acl_file, rules
from store.client import Store
from store.errors import VergeError
from store.evaluations import Claim, Round, Tally
from store.keys import Keys
from store.mirror import Mirror
from store.queries import Gate, list_problems, problem_history, summary
from store.server import EmbeddedServer
from store.wire import Manifest
from tests.store.scripted import META, Opened, everywhere, group, play, problems, stored_keys


async def as_role(store: Store, opened: Opened, role: Role) -> Store:
    """A client of the run that may do what the role may, and nothing else."""
    name, password = f"{store.keys.run}-{role}", f"{role}'s"
    setuser = ("ACL SETUSER", name, "on", f">{password}", *rules(store.keys, role))
    await store.link.redis.execute_command(*setuser, **everywhere(store))
    where = urlsplit(opened.server.url)
    client = await Store.connect(f"redis://{name}@{where.netloc}", store.keys.run, password, lease_s=0.2, patience_s=5)
    opened._stack.push_async_callback(client.close)
    return client


def test_each_role_can_do_its_whole_job(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        actor, learner, reader = [await as_role(store, opened, role) for role in ("actor", "learner", "reader")]
        tally = Tally("h", 8, 1, 1, 0, 0, 24, 9.5)
        await store.link.redis.script_flush()

        await learner.open_run(META)
        await learner.add_problems(problems("p", "q"))
        assert await learner.add_held_out(problems("h")) == 1
        assert await learner.acquire_learner("token", 30)
        assert await learner.renew_learner("token", 30)
        await learner.announce(Manifest(0, "/w", "00", 1, 0, 0.0))
        assert await learner.issue(["p", "q"] * 5, limit=10) == 10

        assert (await actor.wait_manifest(-1, 100)) is not None
        await actor.beat("actor", {"version": 0})
        assert await actor.phase() == ("running", "")
        taken = await actor.take("actor", 6)
        assert len(taken) == 6
        assert await actor.problem("p") is not None
        assert await actor.renew("actor", taken) == 6
        assert [await actor.commit("actor", group(ticket, [1, 0])) for ticket in taken[:4]] == ["committed"] * 4
        assert await actor.commit("actor", group(taken[0], [1, 0])) == "duplicate"
        assert await actor.refuse("actor", taken[4], "scripted", errors=1)
        assert await actor.give_back("actor", taken[5:]) == 1
        assert len(await actor.take("other", 9)) == 5
        assert await actor.take("third", 1, block_ms=50) == []
        await asyncio.sleep(0.25)
        assert await actor.take("third", 9), "leases that ran out"

        for ending in ("given back", "finished"):
            claim = await actor.claim_round(0, 5)
            assert claim is not None
            assert await actor.renew_round(claim)
            assert await learner.round_under_way()
            assert [await actor.held_out_problem(name) for name in await actor.held_out_ids()] == problems("h")
            if ending == "given back":
                await actor.give_round_back(claim)
            else:
                assert await actor.finish_round(claim, Round(0, 0, "actor", 1.0, 2.0, 8, (tally,)))
        assert [one.tallies for one in await reader.rounds()] == [(tally,)]

        mirror = Mirror(learner)
        assert len(await mirror.sync()) == 0
        ids = list(mirror.pool)
        assert len(ids) == 4
        assert all((await learner.fetch(ids)).values())
        assert await learner.use(ids[:2], 1) == 2
        assert await learner.keep_reference_logprobs({ids[0]: np.array([-1.0, -2.0])}) == 1
        assert (await learner.reference_logprobs(ids[:1]))[ids[0]] is not None
        assert await learner.rollback(0) == 2
        assert await learner.retire(ids[:1], "used") == 1
        await learner.record_dynamics({"step": 1, "loss": 0.5})
        await learner.set_phase("done", "all steps")
        await learner.counters()
        await learner.open_tickets()
        await learner.release_learner("token")

        assert (await summary(reader, Gate()))["groups"]["committed"] == 4
        assert len(await list_problems(reader, Gate(), where="attempts > 0")) == 2
        assert (await problem_history(reader, "p", Gate()))["groups"]
        assert all((await reader.fetch(ids[1:])).values())
        assert len(await reader.manifests()) == 1
        assert len(await reader.dynamics_history(5)) == 1

    play(server, body)


def test_no_role_can_do_what_is_not_its_own(server: EmbeddedServer) -> None:
    async def body(store: Store, opened: Opened) -> None:
        await store.add_problems(problems("p"))
        await store.issue(["p"] * 3, limit=3)
        (ticket,) = await store.take("a", 1)
        await store.commit("a", group(ticket, [1, 0]))
        actor, learner, reader = [await as_role(store, opened, role) for role in ("actor", "learner", "reader")]
        before = {key: await store.link.redis.dump(key) for key in await stored_keys(store, store.keys.prefix + "*")}
        weights = Manifest(0, "/w", "00", 1, 0, 0.0)
        claim, found = Claim(0, 1, "token", 0), Round(0, 0, "b", 1.0, 2.0, 8, ())
        refused = [
            *(act(client) for client in (actor, reader) for act in (
                lambda it: it.announce(weights), lambda it: it.set_phase("failed"), lambda it: it.issue(["p"], 99),
                lambda it: it.add_problems(problems("new")), lambda it: it.record_dynamics({"loss": 0.0}),
                lambda it: it.retire([ticket.id], "used"), lambda it: it.acquire_learner("x", 30),
                lambda it: it.open_run(META | {"gamma": "0.1"}), lambda it: it.rollback(0),
                lambda it: it.keep_reference_logprobs({ticket.id: np.zeros(2)}),
                lambda it: it.add_held_out(problems("new")),
            )),
            *(act(reader) for act in (
                lambda it: it.take("b", 1), lambda it: it.refuse("b", ticket, ""), lambda it: it.beat("b", {}),
                lambda it: it.commit("b", group(ticket, [1, 1])), lambda it: it.use([ticket.id], 1),
                lambda it: it.claim_round(0, 1), lambda it: it.finish_round(claim, found),
                lambda it: it.give_round_back(claim),
            )),
            actor.fetch([ticket.id]),
        ]  # fmt: skip
        for attempt in refused:
            with pytest.raises(VergeError, match=r"forbids this user .*`verge state acl RUN` prints") as why:
                await attempt
            assert "\n" not in str(why.value)
        for client in (actor, learner, reader):
            with pytest.raises(redis.exceptions.NoPermissionError):
                await client.link.redis.get("{other}:meta")
            for command in (("CONFIG GET", "*"), ("FLUSHALL",), ("KEYS", "*"), ("ACL LIST",), ("SHUTDOWN",)):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    await client.link.redis.execute_command(*command, **everywhere(client))
        after = {key: await store.link.redis.dump(key) for key in await stored_keys(store, store.keys.prefix + "*")}
        assert after == before

    play(server, body)


def test_the_command_prints_rules_that_the_server_takes(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(config().model_dump_json())
    monkeypatch.setattr(sys, "argv", ["verge", "state", "acl", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[2] for line in lines] == ["tls-actor", "tls-learner", "tls-reader"]
    with redis.Redis.from_url(server.url, password=server.password) as admin:
        for line in lines:
            assert admin.execute_command(*line.split())
            assert not admin.acl_getuser(line.split()[2])["passwords"], "nobody can log in before a person adds one"


def certificate(folder: Path, name: str, signer: str | None) -> None:
    """A key and a certificate for 127.0.0.1 as PEM files; `signer` None: an authority that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    issuer, signing = subject, key
    if signer is not None:
        issuer = x509.load_pem_x509_certificate((folder / f"{signer}.crt").read_bytes()).subject
        signing = serialization.load_pem_private_key((folder / f"{signer}.key").read_bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), True)
        .sign(signing, hashes.SHA256())
    )  # fmt: skip
    (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / f"{name}.key").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip


@contextmanager
def tls_server(folder: Path, client_certificates: bool) -> Iterator[int]:
    """The port of a server that speaks only TLS."""
    options = {
        "port": "0", "tls-cert-file": folder / "server.crt", "tls-key-file": folder / "server.key",
        "tls-ca-cert-file": folder / "authority.crt", "tls-auth-clients": "yes" if client_certificates else "no",
    }  # fmt: skip
    with bare_server(folder, "tls-port", options) as port:
        yield port


@contextmanager
def bare_server(folder: Path, port_option: str, options: Mapping[str, object]) -> Iterator[int]:
    """The port of a redis-server with these options and nothing of ours around it."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server: not tested (the embedded Valkey is built without TLS)")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {port_option: port, "bind": "127.0.0.1", "save": "", "logfile": folder / "log", "dir": folder, **options}
    process = subprocess.Popen(
        [binary, *(str(word) for name, value in options.items() for word in (f"--{name}", value))]
    )
    try:
        deadline = time.monotonic() + 60
        while "Ready to accept" not in ((folder / "log").read_text() if (folder / "log").exists() else ""):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


def test_a_server_with_the_acl_file_knows_the_roles_and_nobody_else(tmp_path: Path) -> None:
    passwords: dict[Role, str] = {"actor": "a b", "learner": "l\u00e4", "reader": "r"}
    (tmp_path / "users.acl").write_text(acl_file(Keys("tls"), passwords))
    for password in passwords.values():
        assert password not in (tmp_path / "users.acl").read_text().split(" ")

    def of(port: int, role: Role, password: str) -> RunConfig:
        (tmp_path / role).write_text(password + "\n")
        return config(url=f"redis://tls-{role}@127.0.0.1:{port}", password_file=tmp_path / role)

    async def beat(settings: RunConfig) -> object:
        url, password = store_endpoint(settings)
        store = await Store.connect(url, settings.name, password, patience_s=5)
        try:
            await store.beat("actor-1", {"version": 3})
            return (await store.heartbeat("actor-1") or {})["version"], await store.heartbeat("nobody")
        finally:
            await store.close()

    with bare_server(tmp_path, "port", {"aclfile": tmp_path / "users.acl"}) as port:
        assert asyncio.run(rolled_out(of(port, "learner", passwords["learner"]))) == 1
        assert asyncio.run(beat(of(port, "actor", passwords["actor"]))) == (3, None)
        with pytest.raises(VergeError, match="forbids this user"):
            asyncio.run(beat(of(port, "reader", passwords["reader"])))
        with pytest.raises(VergeError, match="refuses the password"):
            asyncio.run(rolled_out(of(port, "learner", "guessed")))
        with pytest.raises(VergeError, match="refuses the password"):
            asyncio.run(rolled_out(config(url=f"redis://127.0.0.1:{port}"), patience_s=0.5))


def config(**store: object) -> RunConfig:
    needed = {
        "name": "tls", "model": {"path": "tiny"}, "problems": {"source": "builtin:countdown"},
        "sampling": {"max_completion_tokens": 8}, "actor": {"context_tokens": 32}, "learner": {"steps": 1},
    }  # fmt: skip
    return parse_config({**needed, "store": store}, "run.toml")


async def rolled_out(settings: RunConfig, patience_s: float = 5.0) -> int:
    url, password = store_endpoint(settings)
    store = await Store.connect(url, settings.name, password, patience_s=patience_s)
    try:
        await store.open_run(META)
        await store.add_problems(problems("p"))
        await store.issue(["p"], limit=1)
        for ticket in await store.take("a", 1):
            await store.commit("a", group(ticket, [1, 0]))
        return (await store.counters())["committed"]
    finally:
        await store.close()


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pem")
    for name, signer in (("authority", None), ("server", "authority"), ("client", "authority"), ("stranger", None)):
        certificate(folder, name, signer)
    return folder


def test_a_run_works_over_tls_with_the_authority_of_the_config(pem: Path) -> None:
    with tls_server(pem, client_certificates=False) as port:
        url = f"rediss://127.0.0.1:{port}"
        assert asyncio.run(rolled_out(config(url=url, ca_file=pem / "authority.crt"))) == 1
        began = time.monotonic()
        for files in ({}, {"ca_file": pem / "stranger.crt"}):
            with pytest.raises(VergeError, match=r"certificate that is not trusted .*; set store.ca_file") as refused:
                asyncio.run(rolled_out(config(url=url, **files)))
            assert "ssl_" not in str(refused.value)
        assert time.monotonic() - began < 3, "what waiting does not mend is not waited for"


def test_a_server_that_asks_for_a_certificate_gets_it(pem: Path) -> None:
    with tls_server(pem, client_certificates=True) as port:
        known = {"url": f"rediss://127.0.0.1:{port}", "ca_file": pem / "authority.crt"}
        ours = {"cert_file": pem / "client.crt", "key_file": pem / "client.key"}
        assert asyncio.run(rolled_out(config(**known, **ours))) == 1
        with pytest.raises(VergeError, match=r"does it ask for store.cert_file\?"):
            asyncio.run(rolled_out(config(**known), patience_s=0.5))


def test_wrong_tls_settings_are_named(pem: Path) -> None:
    with pytest.raises(VergeError, match=r"store: ca_file is set, but url is not rediss"):
        config(url="redis://h:1", ca_file=pem / "authority.crt")
    with pytest.raises(VergeError, match="cert_file and key_file go together"):
        config(url="rediss://h:1", cert_file=pem / "client.crt")
    with pytest.raises(VergeError, match=r"store.ca_file /no/such: no such file"):
        store_endpoint(config(url="rediss://h:1", ca_file=Path("/no/such")))
