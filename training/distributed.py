"""Several processes as one JAX cluster, where the engine that started them says so in its own variables.

Slurm: `srun -n N` sets SLURM_STEP_NUM_TASKS, SLURM_PROCID and the rest for each of its tasks, and JAX itself knows how
to read them. A job of one task, or a program started without srun in a job of several, is left as one process.
"""

import os


def processes() -> int:
    """Returns how many processes the engine started together with this one; 1 where there is no engine."""
    if "SLURM_PROCID" not in os.environ or "SLURM_STEP_NODELIST" not in os.environ:
        return 1
    # `sbatch` sets SLURM_NTASKS for its script too, which is one process; the step's number is srun's alone.
    try:
        return int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
    except ValueError:
        return 1


def initialise() -> bool:
    """Joins the processes that the engine started; returns whether there is more than one. Before any device work."""
    if processes() < 2:
        return False
    import jax

    if not jax.distributed.is_initialized():
        jax.distributed.initialize(cluster_detection_method="slurm")
    return True
