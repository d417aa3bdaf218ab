"""Admission as a small pure state machine, and a checker that visits every interleaving of it.

issue ──▶ open ──start (a version)──▶ started ──commit──▶ pool ──draw, max_uses times──▶ used ──checkpoint──▶ gone
            ▲                            │ └─refuse, zero mass──▶ refunded  └─lag > max_lag──▶ refunded
            └──────────actor dies────────┘

One move is one event of one process; any may come next. Weights are announced up to two steps after they were trained,
and an actor may start on the version before the newest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations

from learner.config import AdmissionConfig

Limit = Callable[[int], int]
"""Announced step → most issued − refunded."""


@dataclass(frozen=True, slots=True)
class State:
    """Everything that decides what can happen next. `pool` has (version, uses) of each group that can be drawn."""

    step: int = 0
    announced: int = 0
    covered: int = 0
    issued: int = 0
    """Less refunded."""
    open: int = 0
    started: tuple[int, ...] = ()
    pool: tuple[tuple[int, int], ...] = ()
    used: tuple[int, ...] = ()
    """The step of the last use of each group that waits for a checkpoint to leave."""


@dataclass(frozen=True, slots=True)
class Model:
    """The machine of one config. `steps` ends it; `max_groups` bounds pool and open tickets, as the store does."""

    config: AdmissionConfig
    batch: int
    steps: int
    limit: Limit
    max_groups: int | None = None
    checkpoint_every: int = 1
    """Matters only with `max_groups`: without, used groups take nobody's place and are forgotten at once."""
    prompt: bool = False
    """Actors start on the newest weights, end in the order in which they started, and every group teaches; the
    learner draws the oldest groups. Then nothing may go to waste."""
    refunds: bool = True
    """False: an end that yields nothing keeps its ticket, as a faulty store would."""

    def moves(self, state: State) -> Iterator[State]:
        """Every state that one event can lead to."""
        yield from self._issue(state)
        yield from self._actors(state)
        yield from self._learner(state)

    def _issue(self, state: State) -> Iterator[State]:
        held = state.open + len(state.started) + len(state.pool) + len(state.used)
        room = self.limit(state.announced) - state.issued
        if self.max_groups is not None:
            room = min(room, self.max_groups - held)
        if room > 0:
            yield replace(state, issued=state.issued + room, open=state.open + room)

    def _actors(self, state: State) -> Iterator[State]:
        if state.open:
            for version in {state.announced} if self.prompt else {state.announced, max(0, state.announced - 1)}:
                yield replace(state, open=state.open - 1, started=_with(state.started, version))
        for version in state.started[:1] if self.prompt else set(state.started):
            left = replace(state, started=_without(state.started, version))
            yield replace(left, pool=_with(state.pool, (version, 0)))
            if not self.prompt:
                yield self._refunded(left)  # an error, or a group without mass
                yield replace(left, open=state.open + 1)  # the actor died: its lease runs out

    def _refunded(self, state: State) -> State:
        return replace(state, issued=state.issued - 1) if self.refunds else state

    def _learner(self, state: State) -> Iterator[State]:
        if state.announced < state.step:
            yield replace(state, announced=state.announced + 1)
        for group in set(state.pool):
            if state.step - group[0] > self.config.max_lag:
                yield self._refunded(replace(state, pool=_without(state.pool, group)))
        for last in set(state.used):
            if last <= state.covered:
                yield replace(state, used=_without(state.used, last))
        if self.max_groups is not None and state.step - state.covered >= self.checkpoint_every:
            yield replace(state, covered=state.step)
        fresh = [group for group in state.pool if state.step - group[0] <= self.config.max_lag]
        if state.step < self.steps and state.announced >= state.step - 1 and len(fresh) >= self.batch:
            for drawn in {tuple(fresh[: self.batch])} if self.prompt else set(combinations(fresh, self.batch)):
                yield self._train(state, drawn)

    def _train(self, state: State, drawn: tuple[tuple[int, int], ...]) -> State:
        pool, used = state.pool, state.used
        for version, uses in drawn:
            pool = _without(pool, (version, uses))
            if uses + 1 < self.config.max_uses:
                pool = _with(pool, (version, uses + 1))
            elif self.max_groups is not None:
                used = _with(used, state.step + 1)
        return replace(state, step=state.step + 1, pool=pool, used=used)


@dataclass(frozen=True, slots=True)
class Explored:
    """What a visit to every reachable state found."""

    states: int
    stuck: tuple[State, ...]
    """States from which no sequence of events leads to the last step."""
    expired: int
    """States with a group in the pool that is too old to be drawn."""
    most_held: int
    """Most groups, started and open tickets at once."""


def explore(model: Model) -> Explored:
    """Visit every state that any interleaving reaches."""
    before: dict[State, list[State]] = {State(): []}
    frontier = [State()]
    while frontier:
        state = frontier.pop()
        for reached in model.moves(state):
            if reached not in before:
                before[reached] = []
                frontier.append(reached)
            before[reached].append(state)
    alive = {state for state in before if state.step == model.steps}
    frontier = list(alive)
    while frontier:
        for earlier in before[frontier.pop()]:
            if earlier not in alive:
                alive.add(earlier)
                frontier.append(earlier)
    return Explored(
        len(before),
        tuple(state for state in before if state not in alive),
        sum(any(state.step - version > model.config.max_lag for version, _ in state.pool) for state in before),
        max(state.open + len(state.started) + len(state.pool) + len(state.used) for state in before),
    )


def _with(items: tuple, item: object) -> tuple:
    return tuple(sorted((*items, item)))


def _without(items: tuple, item: object) -> tuple:
    place = items.index(item)
    return items[:place] + items[place + 1 :]
