"""Every key of a run, by name. The control plane shares one cluster slot; payloads spread over the cluster."""

import re

from store.errors import VergeError

_RUN = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Keys:
    """The keys of one run. Problem ids are the user's and may hold anything, so they come last in their key.

    Raises:
        VergeError: the run's name could break a key.
    """

    def __init__(self, run: str) -> None:
        if not _RUN.fullmatch(run):
            raise VergeError(f"run name {run[:80]!r} must be 1 to 64 characters of A-Z a-z 0-9 . _ -")
        self.run = run
        self.prefix = prefix = f"{{{run}}}:"
        """What every key of the control plane starts with; the Lua scripts append to it."""
        self.meta = prefix + "meta"
        """Hash: schema, fingerprint, gamma, group_size, phase, reason."""
        self.problems = prefix + "problems"
        """List: problem ids in the order in which they were added."""
        self.held_out = prefix + "held_out"
        """List: ids of the problems that are never trained on, in the order in which they were added."""
        self.tickets = prefix + "tickets"
        """Stream + consumer group: an entry exists exactly while its ticket has not ended."""
        self.issued = prefix + "issued"
        """Hash: nonce and result of the last `issue`, so that a retry after a lost reply issues nothing twice."""
        self.refused = prefix + "refused"
        """Capped stream: tickets that ended without evidence, with the reason."""
        self.groups = prefix + "groups"
        """Stream: one entry per committed group, for ever. The log from which every count can be recomputed."""
        self.live = prefix + "live"
        """Set: ids of the groups in the pool."""
        self.used_at = prefix + "used_at"
        """Hash: learner step → groups that were retired as used and last drawn at that step."""
        self.garbage = prefix + "garbage"
        """Set: ids of payloads whose group has left, still to be deleted."""
        self.counters = prefix + "counters"
        """Hash: counts that change together with the state they count."""
        self.weights = prefix + "weights"
        """Hash: the current manifest."""
        self.weights_log = prefix + "weights:log"
        """Stream: one manifest per version; the entry id is `<version>-1`, so versions can only rise."""
        self.dynamics = prefix + "dynamics"
        """Hash: what the learner last read from training."""
        self.dynamics_log = prefix + "dynamics:log"
        """Capped stream: the same, with history."""
        self.evaluations = prefix + "evaluations"
        """Capped stream: finished evaluation rounds; the entry id is `<version>-1`, so versions can only rise."""
        self.evaluating = prefix + "evaluating"
        """String with expiry: the token of the one evaluation round that is under way."""
        self.learner = prefix + "learner"
        """String with expiry: the token of the one live learner."""
        self.importing = prefix + "importing"
        """String: the checksum of the file that is being imported; gone when the import is complete."""
        self.actors = prefix + "actors"
        """Hash: actor → JSON heartbeat."""

    def problem(self, problem_id: str) -> str:
        """Hash: one problem's text and facts."""
        return f"{self.prefix}problem:{problem_id}"

    def held_out_problem(self, problem_id: str) -> str:
        """Hash: the text of one held-out problem. No ticket can name it: tickets are for the other problems."""
        return f"{self.prefix}held_out:{problem_id}"

    def group(self, group_id: str) -> str:
        """Hash: one live group's index facts, uses, steps at which it was drawn, payload id, and the log-probs of its
        completions under a frozen reference model, where there is one.
        """
        return f"{self.prefix}group:{group_id}"

    def payload(self, payload_id: str) -> str:
        """String: one payload. Its id is `<group id>:<nonce>`, the nonce being that of the attempt to commit."""
        return f"{self.run}:payload:{payload_id}"
