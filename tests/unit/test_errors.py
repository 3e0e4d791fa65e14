import errno
import inspect

import pytest
import torch
import torch.distributed as dist

from evaluator import errors
from evaluator.contract.states import FailureReason
from evaluator.errors import DECIDED_BY_SERVER, EvaluatorError, Fault, OutOfMemory, fault_of

CLASSES = sorted(EvaluatorError.__subclasses__(), key=lambda c: c.__name__)


def test_every_reason_has_one_class_or_is_the_servers() -> None:
    raised = [c.reason for c in CLASSES]
    assert len(raised) == len(set(raised))
    assert set(raised).isdisjoint(DECIDED_BY_SERVER)
    assert set(raised) | DECIDED_BY_SERVER | {FailureReason.INTERNAL} == set(FailureReason)


def test_the_tree_in_the_docstring_names_every_class() -> None:
    tree = inspect.getdoc(errors) or ""
    assert [c.__name__ for c in CLASSES if c.__name__ not in tree] == []


@pytest.mark.parametrize("kind", CLASSES, ids=[c.__name__ for c in CLASSES])
def test_the_docstring_is_the_default_message(kind: type[EvaluatorError]) -> None:
    assert kind().message == inspect.getdoc(kind)
    assert kind("data.txt: byte 7 is no UTF-8").message == "data.txt: byte 7 is no UTF-8"
    assert fault_of(kind("why")) == Fault(kind.reason, "why")


def allocate_on_cpu() -> None:
    torch.empty(1 << 62, dtype=torch.int8)


def test_the_cpu_allocator_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        allocate_on_cpu()
    fault = fault_of(caught.value)
    assert fault.reason is FailureReason.OUT_OF_MEMORY
    assert fault.message.startswith(OutOfMemory().message)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MemoryError(), FailureReason.OUT_OF_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory."), FailureReason.OUT_OF_MEMORY),
        (dist.DistNetworkError("Failed to recv"), FailureReason.COMMUNICATION),
        (dist.DistStoreError("wait timeout"), FailureReason.COMMUNICATION),
        (RuntimeError("[gloo/transport/tcp] Connection closed"), FailureReason.COMMUNICATION),
        (OSError(errno.ENOSPC, "No space left", "a/file"), FailureReason.DISK_FULL),
        (ValueError("a defect"), FailureReason.INTERNAL),
    ],
    ids=["python", "cuda", "network", "store", "gloo", "disk", "internal"],
)
def test_foreign_errors_are_told_by_their_kind(error: Exception, reason: FailureReason) -> None:
    assert fault_of(error).reason is reason
    assert type(error).__name__ in fault_of(error).message
