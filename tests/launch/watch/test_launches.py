from __future__ import annotations

from types import SimpleNamespace

import torch

from fulltilt.launch.watch.launches import Counter, launched


def event(name: str, *, on_gpu: bool, microseconds: float, region: bool = False) -> SimpleNamespace:
    kinds = torch._C._autograd.DeviceType
    return SimpleNamespace(
        name=name,
        device_type=kinds.CUDA if on_gpu else kinds.CPU,
        is_user_annotation=region,
        time_range=SimpleNamespace(elapsed_us=lambda: microseconds),
    )


def test_calls_are_counted_on_the_host_and_time_on_the_gpu() -> None:
    found = launched(
        [
            event("aten::mm", on_gpu=False, microseconds=30),
            event("cudaLaunchKernel", on_gpu=False, microseconds=5),
            event("cudaLaunchKernelExC", on_gpu=False, microseconds=5),
            event("cuLaunchKernel", on_gpu=False, microseconds=5),
            event("cudaGraphLaunch", on_gpu=False, microseconds=5),
            event("cudaMemcpyAsync", on_gpu=False, microseconds=5),
            event("gemm", on_gpu=True, microseconds=100),
            event("void at::native::vectorized_elementwise_kernel<8, …>", on_gpu=True, microseconds=20),
            event("void at::native::multi_tensor_apply_kernel<…, elementwise>", on_gpu=True, microseconds=7),
            event("Optimizer.step#AdamW.step", on_gpu=False, microseconds=60, region=True),
            event("Optimizer.step#AdamW.step", on_gpu=True, microseconds=25, region=True),
            event("Memcpy HtoD (Pinned -> Device)", on_gpu=True, microseconds=70),
        ]
    )
    assert (found.count, found.graphs) == (4, 1)
    assert found.kernel_seconds == 127e-6
    assert found.fusable_seconds == 20e-6, "the optimizer's are not the model's"


def test_without_a_gpu_nothing_is_launched() -> None:
    counter = Counter()
    assert counter.begin() is None
    torch.ones(4) @ torch.ones(4)
    assert counter.end().count == 0
