"""The key/value groups of kv_groups.py, matched in parameters, each with a learning rate of its own.

Every arm is trained with four learning rates on a selection seed first; the best is the arm's, and is reported on the
other seeds. One learning rate for all would favour the arm it suits best.
"""

from configs.sweeps import kv_groups


def get_sweep() -> dict:
    """Returns the sweep: 4 arms, 4 learning rates on 1 seed, then 3 seeds."""
    return kv_groups.get_sweep() | dict(
        name="kv_groups_tuned",
        title="Key/value groups of 8 heads, matched and tuned",
        select=dict(field="optimizer.learning_rate", values=[3e-4, 1e-3, 3e-3, 1e-2], seeds=[100]),
    )
