"""From a completion to a reward and a verdict."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from actors.config import VerifierConfig
from actors.verifiers.pool import CannotImport, Limits, Pool
from actors.verifiers.registry import BuiltIn, Pooled, PythonFunction, make_verifier
from actors.verifiers.spec import Spec
from store.errors import VergeError
from store.wire import Json, Problem, Verdict

LENGTH = "length"
"""The finish reason of a completion that reached its token limit without ending."""


class Verifiers:
    """Every verifier of a run.

        verifiers = Verifiers(config.verifier)
        reward, verdict = await verifiers.verify(problem, text, finish_reason)

    `last_error` says why the last verdict was `error`, and is empty while none was.
    """

    def __init__(self, config: VerifierConfig) -> None:
        self._config = config
        self._limits = Limits(config.time_limit_s, config.import_limit_s, config.memory_limit_mib << 20)
        self._pool: Pool | None = None
        self._latest: tuple[Problem, Spec] | None = None
        self.last_error = ""

    def check(self, problems: Iterable[Problem]) -> None:
        """See that every verifier is there and can use the problem's answer.

        Functions of the user's are imported; a pooled verifier of ours must find its trial correct.

        Raises:
            VergeError: the first that is not, with the problem's id.
        """
        pooled: dict[str, tuple[Pooled | PythonFunction, str]] = {}
        for problem in problems:
            try:
                check_problem(problem)
            except VergeError as error:
                raise VergeError(f"problem {problem.id}: {error}") from None
            verifier = make_verifier(problem.verifier)
            if not isinstance(verifier, BuiltIn):
                pooled.setdefault(verifier.name, (verifier, problem.id))
        if pooled:
            with ThreadPoolExecutor(1) as thread:  # a loop of its own: this may be called inside a running one
                thread.submit(asyncio.run, self._try_out(list(pooled.values()))).result()

    async def _try_out(self, pooled: list[tuple[Pooled | PythonFunction, str]]) -> None:
        pool = Pool(1, self._limits)
        try:
            for verifier, problem_id in pooled:
                if why := await self._what_fails(pool, verifier, problem_id):
                    raise VergeError(f"verifier {verifier.name} of problem {problem_id}: {why}")
        finally:
            pool.close()

    async def _what_fails(self, pool: Pool, verifier: Pooled | PythonFunction, problem_id: str) -> str:
        if isinstance(verifier, PythonFunction):
            try:
                await pool.load(verifier.path)
            except CannotImport as failure:
                return str(failure)
            return ""
        answer, completion = verifier.trial
        spec = self._spec(Problem(problem_id, "", verifier.name, answer), verifier)
        outcome = await pool.check(verifier.path, spec, completion, verifier.grace_s)
        return "" if outcome.verdict is Verdict.CORRECT else outcome.why or "it takes a right answer for a wrong one"

    async def verify(self, problem: Problem, text: str, finish_reason: str) -> tuple[float, Verdict]:
        """Reward and verdict of a completion, whose text is without special tokens.

        The reward is 1 for `correct` and 0 for anything else. A completion that was cut off is `truncated` and not
        looked at, or with `verify_truncated` only when it is not correct either.
        """
        cut_off = finish_reason == LENGTH
        if cut_off and not self._config.verify_truncated:
            return 0.0, Verdict.TRUNCATED
        verifier = make_verifier(problem.verifier)
        if isinstance(verifier, BuiltIn):
            verdict = Verdict.CORRECT if verifier.verify(problem.answer, text) else Verdict.WRONG
        else:
            verdict = await self._ask_worker(verifier, problem, text)
        if cut_off and verdict is Verdict.WRONG:
            verdict = Verdict.TRUNCATED
        return float(verdict is Verdict.CORRECT), verdict

    async def _ask_worker(self, verifier: Pooled | PythonFunction, problem: Problem, text: str) -> Verdict:
        if self._pool is None:
            self._pool = Pool(self._config.workers, self._limits)
        if self._latest is None or self._latest[0] is not problem:  # a group's completions come one after another
            self._latest = problem, self._spec(problem, verifier)
        spec, limit_s = self._latest[1], problem.time_limit_s
        outcome = await self._pool.check(verifier.path, spec, text, verifier.grace_s, limit_s)
        if outcome.verdict is Verdict.ERROR:
            self.last_error = outcome.why
        return outcome.verdict

    def _spec(self, problem: Problem, verifier: Pooled | PythonFunction) -> Spec:
        prompt = problem.prompt if isinstance(problem.prompt, str) else list(problem.prompt)
        facts: dict[str, Json] = {"prompt": prompt, "tags": list(problem.tags)}
        facts |= {name: getattr(problem, name) for name in ("id", "verifier", "answer")}
        if isinstance(verifier, Pooled):
            limits = self._limits
            facts["limits"] = {
                "wall_s": problem.time_limit_s or limits.check_s,
                "memory_bytes": limits.memory_bytes,
                "sandbox": self._config.sandbox,
            }
        return Spec(facts)

    def close(self) -> None:
        """Kill the workers. Checks under way end in `error`."""
        if self._pool is not None:
            self._pool.close()


def check_problem(problem: Problem) -> None:
    """VergeError unless the problem's verifier is there and can use its answer. Nothing is imported."""
    verifier = make_verifier(problem.verifier)
    if not isinstance(verifier, PythonFunction):
        try:
            verifier.check_answer(problem.answer)
        except ValueError as error:
            raise VergeError(str(error)) from None
