"""GPUs that can be compiled for without having one: their descriptions in the form of XLA's compiler.

The figures are the vendor's (architecture white papers and data sheets; sizes and clocks as the driver reports them and
as openxla/xla's own target descriptions have them). Published peaks are in `training/devices/chips.py`.
"""

from dataclasses import dataclass

MOST = 8  # GPUs of one host


@dataclass(frozen=True)
class GPU:
    """One GPU.

    Attributes:
        name: as in `jax.Device.device_kind`.
        compute_capability: major, minor.
        cores: streaming multiprocessors.
        fpus: float32 units of each.
        shared_memory: bytes of each multiprocessor; a block may take 1 KiB less.
        l2: bytes.
        clock: GHz.
        bandwidth: of the memory, bytes/s.
        memory: bytes, as the driver reports them.
        source: of the figures.
    """

    name: str
    compute_capability: tuple[int, int]
    cores: int
    fpus: int
    shared_memory: int
    l2: int
    clock: float
    bandwidth: int
    memory: int
    source: str

    def description(self, cudnn: tuple[int, int, int]) -> str:
        """Returns XLA's GpuTargetConfigProto in text form.

        Args:
            cudnn: the version of cuDNN that programs will run with.
        """
        major, minor = self.compute_capability
        return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {self.shared_memory}
  threads_per_core_limit: 2048
  core_count: {self.cores}
  fpus_per_core: {self.fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {self.bandwidth}
  l2_cache_size: {self.l2}
  clock_rate_ghz: {self.clock}
  device_memory_size: {self.memory}
  shared_memory_per_block_optin: {self.shared_memory - 1024}
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}}
platform_name: "CUDA"
dnn_version_info {{ major: {cudnn[0]} minor: {cudnn[1]} patch: {cudnn[2]} }}
runtime_version {{ major: 13 minor: 0 patch: 0 }}
device_description_str: "{self.name}"
"""


_HOPPER = "NVIDIA H100 Tensor Core GPU Architecture white paper"

GPUS = {
    "a100": GPU(
        "NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 167_936, 41_943_040, 1.41, 2_039_040_000_000, 85_100_068_864,
        "NVIDIA A100 Tensor Core GPU Architecture white paper and data sheet, 80 GB SXM",
    ),
    "h100": GPU(
        "NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 233_472, 52_428_800, 1.98, 3_352_320_000_000, 84_942_979_072,
        f"{_HOPPER} and H100 data sheet, SXM",
    ),
    "h200": GPU(
        "NVIDIA H200", (9, 0), 132, 128, 233_472, 52_428_800, 1.98, 4_800_000_000_000, 151_397_597_184,
        f"{_HOPPER} and H200 data sheet, SXM",
    ),
    "b200": GPU(
        "NVIDIA B200", (10, 0), 148, 128, 233_472, 132_644_864, 1.965, 7_672_320_000_000, 191_514_411_008,
        "NVIDIA Blackwell architecture brief and HGX B200 data sheet",
    ),
}  # fmt: skip
