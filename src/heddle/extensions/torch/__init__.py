"""The executor on torch tensors: device `torch` is torch's CPU build, device `cuda` a GPU."""

from heddle.doors import Device, Extension

_LOAD, _CHECK = "heddle.extensions.torch.load:load", "heddle.extensions.torch.load:check_device"

EXTENSION = Extension(
    settings=("heddle.extensions.torch.settings:TorchSettings",),
    devices={
        "torch": Device(_LOAD, _CHECK, extra="torch"),
        "cuda": Device(
            _LOAD,
            _CHECK,
            "heddle.extensions.processes.load:load_in_process",
            "cuda",
            is_numbered=True,
        ),
    },
)
