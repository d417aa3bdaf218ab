"""The store, as actors and the learner see it: one flat list of what can be asked and told."""

from typing import Self

from store.errors import VergeError
from store.groups import Groups
from store.keys import Keys
from store.link import Link
from store.problems import Problems
from store.runs import Runs
from store.tickets import Tickets
from store.weights import Weights

PATIENCE_S = 120.0
PAYLOAD_TTL_S = 6 * 3600
MAX_DELIVERIES = 5
_OLDEST_SERVER = (7, 0)


class Store:
    """The facts of one run in Redis. Every operation is atomic, and harmless when repeated.

        store = await Store.connect("redis://127.0.0.1:6379", "demo", password)
        await store.open_run({"fingerprint": "…", "gamma": "0.99", "group_size": "8"})
        await store.add_problems(problems)
        await store.issue(["p1", "p2"], limit=128)
        ticket, *_ = await store.take("actor-0", count=1, block_ms=200)
        await store.commit("actor-0", group)

    Errors that a person must remove are VergeErrors. An absent server is waited for, aloud, for `patience_s`.
    """

    def __init__(self, link: Link, keys: Keys, tickets: Tickets) -> None:
        self.link = link
        self.keys = keys
        self._tickets = tickets

        runs = Runs(link, keys)
        self.open_run = runs.open_run
        self.meta = runs.meta
        self.set_limits = runs.set_limits
        self.set_phase = runs.set_phase
        self.phase = runs.phase
        self.counters = runs.counters
        self.beat = runs.beat
        self.heartbeat = runs.heartbeat
        self.actors = runs.actors
        self.acquire_learner = runs.acquire_learner
        self.renew_learner = runs.renew_learner
        self.release_learner = runs.release_learner

        problems = Problems(link, keys)
        self.add_problems = problems.add_problems
        self.problem = problems.problem
        self.problem_ids = problems.problem_ids
        self.problem_facts = problems.problem_facts
        self.problem_rows = problems.problem_rows
        self.problem_table = problems.problem_table

        self.issue = tickets.issue
        self.room = tickets.room
        self.take = tickets.take
        self.renew = tickets.renew
        self.give_back = tickets.give_back
        self.commit = tickets.commit
        self.refuse = tickets.refuse
        self.refusals = tickets.refusals
        self.open_tickets = tickets.open_tickets

        groups = Groups(link, keys)
        self.entries = groups.entries
        self.last_entry = groups.last_entry
        self.live_groups = groups.live_groups
        self.last_steps = groups.last_steps
        self.fetch = groups.fetch
        self.reference_logprobs = groups.reference_logprobs
        self.keep_reference_logprobs = groups.keep_reference_logprobs
        self.use = groups.use
        self.retire = groups.retire
        self.rollback = groups.rollback

        weights = Weights(link, keys)
        self.announce = weights.announce
        self.manifest = weights.manifest
        self.wait_manifest = weights.wait_manifest
        self.manifests = weights.manifests
        self.record_dynamics = weights.record_dynamics
        self.dynamics = weights.dynamics
        self.dynamics_history = weights.dynamics_history
        self.dynamics_times = weights.dynamics_times

    @classmethod
    async def connect(
        cls,
        url: str,
        run: str,
        password: str | None = None,
        lease_s: float = 60.0,
        *,
        patience_s: float = PATIENCE_S,
        payload_ttl_s: int = PAYLOAD_TTL_S,
        max_deliveries: int = MAX_DELIVERIES,
    ) -> Self:
        """Connect to the server and see that it answers and is new enough; the run need not exist.

        Args:
            url: redis://[user@]host:port/db, rediss:// for TLS, or unix://path;
                any node of a cluster, which is then followed.
            lease_s: seconds after which a ticket that is not renewed goes to another actor.
            patience_s: seconds for which an absent server is waited for.
            payload_ttl_s: seconds after which the payload of an unfinished commit is forgotten.
            max_deliveries: actors that may fail on a ticket before it is set aside as poison.

        Raises:
            VergeError: no answer, a refused password, a server older than Redis 7.0.
        """
        keys = Keys(run)
        link = Link(url, password, patience_s)
        try:
            info = await link.call(lambda redis: redis.info("server"))
            version = str(info.get("redis_version", "0.0"))
            if tuple(map(int, version.split(".")[:2])) < _OLDEST_SERVER:
                raise VergeError(f"the store at {link.name} is Redis {version}, must be 7.0 or newer")
            if info.get("redis_mode") == "cluster":
                await link.follow_cluster()
        except BaseException:
            await link.close()
            raise
        return cls(link, keys, Tickets(link, keys, lease_s, payload_ttl_s, max_deliveries))

    async def close(self) -> None:
        """Close the connections. What was acknowledged is in the store already."""
        await self._tickets.finish()
        await self.link.close()
