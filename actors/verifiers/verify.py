"""From a completion to a reward and a verdict."""

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from actors.config import VerifierConfig
from actors.verifiers.pool import CannotImport, Limits, Pool, Worker
from actors.verifiers.registry import BuiltIn, PythonFunction, make_verifier
from store.errors import VergeError
from store.wire import Problem, Verdict

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
        self.last_error = ""

    def check(self, problems: Iterable[Problem]) -> None:
        """See that every verifier is there and can use the problem's answer; functions of the user's are imported.

        Raises:
            VergeError: the first that is not, with the problem's id.
        """
        functions: dict[PythonFunction, str] = {}
        for problem in problems:
            check_problem(problem)
            verifier = make_verifier(problem.verifier)
            if isinstance(verifier, PythonFunction):
                functions.setdefault(verifier, problem.id)
        if functions:
            with ThreadPoolExecutor(1) as thread:  # a loop of its own: this may be called inside a running one
                thread.submit(asyncio.run, self._import(functions)).result()

    async def _import(self, functions: dict[PythonFunction, str]) -> None:
        worker = await Worker.start(self._limits)
        try:
            for function, problem_id in functions.items():
                try:
                    await worker.load(function.path)
                except CannotImport as failure:
                    raise VergeError(f"verifier {function.name} of problem {problem_id}: {failure}") from None
        finally:
            worker.kill()

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

    async def _ask_worker(self, function: PythonFunction, problem: Problem, text: str) -> Verdict:
        if self._pool is None:
            self._pool = Pool(self._config.workers, self._limits)
        facts = {"id": problem.id, "prompt": problem.prompt, "answer": problem.answer, "tags": problem.tags}
        outcome = await self._pool.check(function.path, facts, text)
        if outcome.verdict is Verdict.ERROR:
            self.last_error = outcome.why
        return outcome.verdict

    def close(self) -> None:
        """Kill the workers. Checks under way end in `error`."""
        if self._pool is not None:
            self._pool.close()


def check_problem(problem: Problem) -> None:
    """VergeError unless the problem's verifier is there and can use its answer. Nothing is imported."""
    verifier = make_verifier(problem.verifier)
    if isinstance(verifier, BuiltIn):
        try:
            verifier.check_answer(problem.answer)
        except ValueError as error:
            raise VergeError(str(error)) from None
