"""The device of a name that a user gave."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fulltilt.errors import InputError, UnavailableError

if TYPE_CHECKING:
    import torch

_ALLOWED = "allowed: 'auto', 'cpu', 'cuda', 'cuda:0', …"


def named_device(device: str | torch.device, home: torch.device | None = None) -> torch.device:
    """A GPU with its number, or the CPU. "auto" is `home`, where a model is; from the CPU it goes to a GPU if there is
    one."""
    import torch

    if device == "auto":
        if home is not None and home.type != "cpu":
            return home
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"device={device!r} is unknown; {_ALLOWED}") from error
    if wanted.type not in ("cpu", "cuda"):
        raise InputError(f"device={str(device)!r} is neither the CPU nor an NVIDIA GPU; {_ALLOWED}")
    if wanted.type == "cuda":
        if not torch.cuda.is_available():
            raise UnavailableError(f"device={str(device)!r}: torch sees no NVIDIA GPU here; use device='cpu' or 'auto'")
        wanted = torch.device("cuda", torch.cuda.current_device() if wanted.index is None else wanted.index)
        if wanted.index >= (count := torch.cuda.device_count()):
            raise UnavailableError(f"device={str(device)!r}: torch sees {count} GPUs here, from cuda:0 on")
    return wanted
