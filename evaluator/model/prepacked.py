"""Weights in the order that the processor's matrix unit reads, packed once instead of each call.

Must not change a bit: packing moves weights, and the product of packed weights was seen equal to
that of plain ones for all shapes tried.
"""

from typing import Any

import torch
from torch import Tensor, nn

ROWS = 512
"""For how many rows the order is chosen; other numbers give the same product."""


class PackedLinear(nn.Module):
    """A linear layer without its plain weights; its state reads like that of the plain one."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, plain: nn.Linear) -> None:
        super().__init__()
        packed = torch.ops.mkldnn._reorder_linear_weight(plain.weight, ROWS)
        # Both are buffers, so that they stand in the order in which the digest expects them.
        self.register_buffer("weight", packed)
        self.register_buffer("bias", plain.bias)

    def forward(self, input_TD: Tensor) -> Tensor:  # noqa: D102 - of nn.Module
        product: Tensor = torch.ops.mkldnn._linear_pointwise(
            input_TD, self.weight, self.bias, "none", [], ""
        )
        return product


def pack(body: Any) -> None:
    """Pack the linear layers of a body, where that pays: bfloat16 on a CPU that has it.

    In float32 it gains nothing, and changes last bits.
    """
    if not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return
    for parent in list(body.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and _gains(child.weight):
                setattr(parent, name, PackedLinear(child))


def _gains(weight: Tensor) -> bool:
    is_whole = type(weight.data) is Tensor  # no part of one that several ranks share
    return is_whole and weight.dtype == torch.bfloat16 and weight.device.type == "cpu"
