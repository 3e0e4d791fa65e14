"""The commands that evaluate a spec on this machine, one torchrun agent for each node.

Several nodes are simulated: their agents meet as on machines of their own, but share this one's
cores and devices.
"""

import secrets
import socket
from collections.abc import Sequence
from pathlib import Path

JOIN_TIMEOUT_S = 120
"""For all agents to meet. torchrun's own 600 s would be a long silent wait."""


def torchrun_commands(
    python: str, num_nodes: int, ranks_per_node: int, spec_path: Path
) -> list[tuple[str, ...]]:
    """Commands of the agents, in the order of their nodes.

    Args:
        python: the interpreter that has torch and the evaluator.
        num_nodes: agents, at least 1.
        ranks_per_node: processes that each starts, at least 1.
        spec_path: the LaunchSpec; torchrun's own files go beside it.
    """
    common = (
        f"--nproc-per-node={ranks_per_node}",
        # The server relaunches, with the batches that are done.
        "--max-restarts=0",
        # Otherwise each launch leaves a folder in the temporary directory.
        f"--log-dir={spec_path.parent / 'torchrun'}",
        "-m",
        "evaluator",
        str(spec_path),
    )
    # The first way takes a free port and a store of its own for each launch.
    meetings = [("--standalone",)] if num_nodes == 1 else _meetings(num_nodes)
    return [(python, "-m", "torch.distributed.run", *meeting, *common) for meeting in meetings]


def _meetings(num_nodes: int) -> Sequence[tuple[str, ...]]:
    """How the agents of several nodes find each other; node 0 holds the store.

    torchrun ranks nodes by their addresses as words, then by process id. Each node gets a loopback
    address of its own, so that its rank is its place here.
    """
    # Somebody may take the port before the agent does; the attempt then fails and is repeated.
    endpoint = f"{node_address(0)}:{_free_port()}"
    run_id = secrets.token_hex(8)
    return [
        (
            f"--nnodes={num_nodes}",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={endpoint}",
            f"--rdzv-id={run_id}",
            # Left to itself torchrun looks at host names, and may find that nobody is the host.
            f"--rdzv-conf=is_host={int(node == 0)},join_timeout={JOIN_TIMEOUT_S}",
            f"--local-addr={node_address(node)}",
        )
        for node in range(num_nodes)
    ]


def node_address(node: int) -> str:
    """A loopback address; all have the same length, so that words sort as numbers do."""
    high, low = divmod(node, 100)
    return f"127.0.{100 + high}.{100 + low}"


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind((node_address(0), 0))
        return int(sock.getsockname()[1])
