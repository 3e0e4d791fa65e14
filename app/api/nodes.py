"""Where the time of a job's current attempt goes, node by node and rank by rank."""

from fastapi import APIRouter

from app.api.deps import JobId, NoQueryDep, ReadDep
from app.api.node_schemas import NodesView
from app.api.openapi import answers
from app.api.views import view_nodes
from app.errors import JobNotFound

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.get(
    "/{job_id}/nodes",
    operation_id="getNodes",
    summary="Timings of nodes and ranks, and who is slow",
    responses=answers({200: {"description": "As the ranks last reported."}}, JobNotFound),
)
async def get_nodes(job_id: JobId, parts: ReadDep, _query: NoQueryDep) -> NodesView:
    """Return what the ranks of the current attempt last reported, and how uneven they are."""
    return view_nodes(await parts.jobs.get(job_id))
