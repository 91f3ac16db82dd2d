"""A GPU that is not there: code runs on it without numbers, and every wait for the device is an error."""

import torch
from torch.autograd.function import BackwardCFunction


def gradient_by_hand(output: torch.Tensor, variable: torch.Tensor, given: torch.Tensor) -> tuple[torch.Tensor]:
    """``torch.autograd.grad`` for a graph on a fake GPU; the gradients of all other leaves stay as they were."""
    leaves = backward_by_hand((output * given).sum(), set_gradients=False)
    return (leaves[id(variable)],)


def backward_by_hand(loss: torch.Tensor, *, set_gradients: bool = True) -> dict[int, torch.Tensor]:
    """``loss.backward()`` for a graph on a fake GPU, node by node: torch's engine asks the machine for a real one.

    Returns the gradient of each leaf by its id.
    """
    leaves = {}
    arrived = {loss.grad_fn: {0: torch.ones_like(loss)}}  # for each node, the gradients of its outputs so far
    while arrived:
        node = max(arrived, key=lambda node: -1 if hasattr(node, "variable") else node._sequence_nr())
        grads = arrived.pop(node)
        if hasattr(node, "variable"):
            leaves[id(node.variable)] = grads[0]
            if set_gradients:
                node.variable.grad = grads[0]
            continue
        call = node.apply if isinstance(node, BackwardCFunction) else node  # of a function of our own, or of torch's
        results = call(*(grads.get(i) for i in range(len(node._input_metadata))))
        results = results if isinstance(results, tuple) else (results,)
        results = results[: len(node.next_functions)]  # arguments that are no tensors come last, and have none
        for (following, i), result in zip(node.next_functions, results, strict=True):
            if following is not None and result is not None:
                result = result.sum_to_size(following._input_metadata[i].shape)
                sums = arrived.setdefault(following, {})
                sums[i] = sums[i] + result if i in sums else result
    return leaves
