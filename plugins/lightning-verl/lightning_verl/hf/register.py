"""Makes `actor_rollout_ref.rollout.name=hf` known to verl."""

from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplicaRegistry

from lightning_verl.hf import NAME


def _load() -> type:
    from lightning_verl.hf.replica import HFReplica

    return HFReplica


RolloutReplicaRegistry.register(NAME, _load)
# The side of the training worker has no public registry in verl 0.9.
base._ROLLOUT_REGISTRY[(NAME, "async")] = "lightning_verl.hf.replica.WeightSender"
