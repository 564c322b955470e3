"""How often a failed run is started again where its job does not say."""

CLUSTER_RETRIES = 3
"""In a cluster; on one machine it is not."""
