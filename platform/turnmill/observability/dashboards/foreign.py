"""Series of other software that dashboards and alerts use, with their labels; docs/metrics.md lists them."""

from collections.abc import Mapping

NODE = ("instance", "ip", "IsHeadNode")
GPU = (*NODE, "GpuIndex", "GpuDeviceName")
ENGINE = ("model_name", "engine")

RAY: Mapping[str, tuple[str, ...]] = {
    "ray_node_gpus_utilization": GPU,
    "ray_node_gram_used": GPU,
    "ray_node_gram_available": GPU,
    "ray_node_gpu_power_milliwatts": GPU,
    "ray_node_cpu_utilization": NODE,
    "ray_node_mem_used": NODE,
    "ray_node_mem_total": NODE,
    "ray_object_store_memory": (*NODE, "Location", "ObjectState"),
    "ray_tasks": ("State", "Name", "IsRetry"),
    "ray_actors": ("State", "Name", "Source"),
    "ray_memory_manager_worker_eviction_total": ("Type", "Name"),
    "ray_node_manager_unexpected_worker_failure_total": NODE,
}
"""Ray, from the metrics port of every node."""

VLLM: Mapping[str, tuple[str, ...]] = {
    "ray_vllm_num_requests_running": ENGINE,
    "ray_vllm_num_requests_waiting": ENGINE,
    "ray_vllm_kv_cache_usage_perc": ENGINE,
    "ray_vllm_prefix_cache_hits_total": ENGINE,
    "ray_vllm_prefix_cache_queries_total": ENGINE,
    "ray_vllm_num_preemptions_total": ENGINE,
    "ray_vllm_prompt_tokens_total": ENGINE,
    "ray_vllm_generation_tokens_total": ENGINE,
    "ray_vllm_time_to_first_token_seconds_bucket": (*ENGINE, "le"),
    "ray_vllm_request_time_per_output_token_seconds_bucket": (*ENGINE, "le"),
    "ray_vllm_e2e_request_latency_seconds_bucket": (*ENGINE, "le"),
}
"""vLLM, whose engines report through Ray; vLLM's own names have `vllm:` instead of `ray_vllm_`."""

KUBERAY: Mapping[str, tuple[str, ...]] = {
    "kuberay_job_deployment_status": ("name", "namespace", "deployment_status", "uid"),
    "kuberay_cluster_provisioned_duration_seconds": ("name", "namespace", "uid"),
}
"""KubeRay's operator."""

KUBE_STATE: Mapping[str, tuple[str, ...]] = {
    "kube_pod_container_resource_requests": ("namespace", "pod", "container", "node", "resource", "unit"),
    "kube_horizontalpodautoscaler_status_current_replicas": ("namespace", "horizontalpodautoscaler"),
    "kube_horizontalpodautoscaler_status_desired_replicas": ("namespace", "horizontalpodautoscaler"),
}
"""kube-state-metrics."""

OF_JOB = ("namespace", "training_job")
JOB_STATE: Mapping[str, tuple[str, ...]] = {
    "turnmill_job_state": (*OF_JOB, "state"),
    "turnmill_job_created_timestamp_seconds": OF_JOB,
    "turnmill_job_attempts": OF_JOB,
    "turnmill_job_failed_attempts": OF_JOB,
    "turnmill_job_disrupted_attempts": OF_JOB,
    "turnmill_job_step": OF_JOB,
    "turnmill_job_checkpoint_step": OF_JOB,
}
"""kube-state-metrics with the operator's chart's configuration, of jobs that run, wait or have ended."""

PYTHON: Mapping[str, tuple[str, ...]] = {"process_resident_memory_bytes": ()}
"""prometheus-client, for every Python process."""

FOREIGN = {**RAY, **VLLM, **KUBERAY, **KUBE_STATE, **JOB_STATE, **PYTHON}
"""All series of other software."""
