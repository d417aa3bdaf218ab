"""Prometheus metrics of a whole run from what its store knows: one endpoint for all of its processes."""

import math

import numpy as np
from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from ops.config import RunConfig
from ops.monitor.families import Families
from ops.monitor.known import of_beats, of_dynamics, of_round
from ops.serve.watch import Moment, Watch


def values_of(moment: Moment, config: RunConfig) -> dict[str, dict[str, float]]:
    """Metric → label → value; the label is "" where there is none."""
    summary, columns = moment.summary, moment.columns
    problems = summary["problems"]
    single = {f"store/{name}": value for name, value in (summary["groups"] | moment.memory).items()} | {
        "store/tickets_open": summary["tickets"]["open"],
        "store/tickets_leased": summary["tickets"]["leased"],
        "store/problems": problems["total"],
        "store/problems_attempted": problems["attempted"],
        "store/problems_solved": problems["solved"],
        "store/version": moment.version,
        "store/running": summary["phase"] == "running",
        "gating/open": problems["gate_open"],
        "gating/posterior_mean": float(np.mean(columns["posterior_mean"])) if problems["total"] else math.nan,
        "learner/max_lag": config.admission.max_lag,
    }
    found = {name: {"": value} for name, value in single.items()}
    measured = of_round(moment.rounds[-1], config.evaluation.k) if moment.rounds else {}
    return found | of_dynamics(summary["dynamics"]) | of_beats(summary["actors"]) | measured


def metrics(watch: Watch, config: RunConfig) -> APIRouter:
    """The route that a Prometheus server reads."""
    router = APIRouter()

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def read(request: Request) -> Response:
        """Every metric, in the format that Prometheus asks for."""
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        moment = await watch.now()
        run = Families(str(moment.summary["run"]), values_of(moment, config))
        return Response(encode(run), headers={"Content-Type": content_type})

    return router
