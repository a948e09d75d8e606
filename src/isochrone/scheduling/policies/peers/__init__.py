"""What other gateways do, as policies with their formulas, defaults and the information that they really have.

They are here to be compared with, each by itself and inside our admission (`NAME+admission`). One file each says the
rule, its source and version, and what could not be had or had to be stood in for.
"""

from isochrone.scheduling.policies.peers.aibrix_prefix_cache import AibrixPrefixCache
from isochrone.scheduling.policies.peers.dynamo import Dynamo, DynamoLMetric
from isochrone.scheduling.policies.peers.llm_d_blend import LlmDBlend
from isochrone.scheduling.policies.peers.llm_d_token_load import LlmDTokenLoad
from isochrone.scheduling.policies.peers.llumnix import Llumnix
from isochrone.scheduling.policies.peers.lmetric import LMetric
from isochrone.scheduling.policies.peers.mooncake import Mooncake
from isochrone.scheduling.policies.peers.preble import Preble
from isochrone.scheduling.policies.peers.production_stack_loadaware import ProductionStackLoadaware
from isochrone.scheduling.policies.peers.ray_prefix_affinity import RayPrefixAffinity
from isochrone.scheduling.policies.peers.smetric import SMetric, SMetricAttention
from isochrone.scheduling.policies.peers.smg_cache_aware import SmgCacheAware, SmgCacheAwareLauncher
from isochrone.scheduling.policies.peers.smg_least_load import SmgLeastLoad
from isochrone.scheduling.policies.peers.smg_power_of_two import SmgPowerOfTwo
from isochrone.scheduling.policies.peers.smg_prefix_hash import SmgPrefixHash
from isochrone.scheduling.policies.peers.vllm_router_cache_aware import VllmRouterCacheAware

PEERS = (
    AibrixPrefixCache,
    Dynamo,
    DynamoLMetric,
    LlmDBlend,
    LlmDTokenLoad,
    Llumnix,
    LMetric,
    Mooncake,
    Preble,
    ProductionStackLoadaware,
    RayPrefixAffinity,
    SMetric,
    SMetricAttention,
    SmgCacheAware,
    SmgCacheAwareLauncher,
    SmgLeastLoad,
    SmgPowerOfTwo,
    SmgPrefixHash,
    VllmRouterCacheAware,
)

__all__ = ["PEERS"]
