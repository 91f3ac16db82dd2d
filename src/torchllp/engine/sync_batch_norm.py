"""Batch norm over several processes. PyTorch's own runs on GPUs alone; this one anywhere."""

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch norm over the instances of all processes, whatever each one's share."""

    is_idle = False
    """Whether this process works on what another one has too, which must not count twice."""

    def _check_input_dim(self, input: Tensor) -> None:
        pass

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        dims = [0, *range(2, input.ndim)]
        shape = [1, -1, *[1] * (input.ndim - 2)]
        x = input.to(torch.promote_types(input.dtype, torch.float32))
        count = x.new_tensor([x.numel() / x.shape[1]])
        counted = float(not self.is_idle)
        total = all_reduce(counted * torch.cat([x.sum(dims), count]))
        mean, count = total[:-1] / total[-1], total[-1].detach()
        centred = x - mean.view(shape)
        variance = all_reduce(counted * centred.square().sum(dims)) / count
        self._update_running(mean.detach(), variance.detach() * count / (count - 1))
        y = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            y = y * self.weight.view(shape) + self.bias.view(shape)
        return y.to(input.dtype)

    @torch.no_grad()
    def _update_running(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        if not self.track_running_stats:
            return
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        momentum = 1 / self.num_batches_tracked if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased_variance.to(self.running_var.dtype), momentum)


def set_idle(module: nn.Module, is_idle: bool) -> None:
    """Say to every batch norm whether what this process sees next counts."""
    for layer in module.modules():
        if isinstance(layer, SyncBatchNorm):
            layer.is_idle = is_idle


def sync_batch_norm(module: nn.Module) -> nn.Module:
    """The same module with every batch norm over all processes; its parameters and buffers are kept."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        synced = SyncBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )
        for name in ("weight", "bias"):
            synced.register_parameter(name, getattr(module, name))
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            synced.register_buffer(name, getattr(module, name))
        return synced.train(module.training)
    for name, child in module.named_children():
        setattr(module, name, sync_batch_norm(child))
    return module
