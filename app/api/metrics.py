"""Figures about the server, for Prometheus."""

from fastapi import APIRouter, Response

from app.api.deps import MetricsDep, NoQueryDep
from app.api.openapi import answers
from app.metrics import CONTENT_TYPE, scrape

router = APIRouter(tags=["health"])


@router.get(
    "/metrics",
    operation_id="getMetrics",
    summary="Figures for Prometheus",
    response_class=Response,
    responses=answers(
        {
            200: {
                "description": "Counters, histograms and gauges, of all projects together.",
                "content": {"text/plain": {"schema": {"type": "string"}}},
            }
        }
    ),
)
async def get_metrics(parts: MetricsDep, _query: NoQueryDep) -> Response:
    """Return them in the text format of Prometheus."""
    text = await scrape(parts.database.within(None), parts.settings)
    return Response(text, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
