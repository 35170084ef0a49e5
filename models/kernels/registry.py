"""The attention kernels by name: each is a file here with one object, KERNEL."""

import importlib

from configs.rules import kernels
from models.kernels.kernel import Kernel

KERNELS: dict[str, Kernel] = {
    name: importlib.import_module(f"models.kernels.{name}").KERNEL for name in kernels.KERNELS
}
