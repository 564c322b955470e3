"""Board: GPUs, engines and machines, from Ray's metrics and vLLM's metrics in Ray."""

from turnmill.observability.dashboards.board import RAY, RECENT, Board, Row, lines, quantile, stacked

GPU_MEMORY = RAY("ray_node_gram_used")
GPU_MEMORY_FREE = RAY("ray_node_gram_available")
CACHE_QUERIES = f"sum(rate({RAY('ray_vllm_prefix_cache_queries_total')}[{RECENT}]))"


def rate_or_none(counter: str, there: str) -> str:
    """Return the rate of one of Ray's counters; 0 before the counter exists, while another series does."""
    return f"(sum(rate({RAY(counter)}[{RECENT}])) or 0 * {there})"


ANY_ENGINE = f"sum({RAY('ray_vllm_num_requests_running')})"
ANY_NODE = f"sum({RAY('ray_node_cpu_utilization')})"

GPUS = Row(
    "GPUs",
    (
        lines(
            "GPU use",
            "Mean share of time in which a GPU computes, by kind.",
            "percent",
            (f"avg by (GpuDeviceName) ({RAY('ray_node_gpus_utilization')})", "{{GpuDeviceName}}"),
            max=100,
        ),
        lines(
            "GPU memory",
            "Used and free GPU memory, by kind.",
            "mbytes",
            (f"sum by (GpuDeviceName) ({GPU_MEMORY})", "{{GpuDeviceName}}: used"),
            (f"sum by (GpuDeviceName) ({GPU_MEMORY_FREE})", "{{GpuDeviceName}}: free"),
        ),
        lines(
            "Power",
            "Power that the GPUs draw, by kind; low power at full use means that they wait for memory.",
            "mwatt",
            (f"sum by (GpuDeviceName) ({RAY('ray_node_gpu_power_milliwatts')})", "{{GpuDeviceName}}"),
        ),
    ),
)

ENGINES = Row(
    "Inference engines",
    (
        lines(
            "Requests",
            "Turns that are being generated, and turns that wait for an engine.",
            "none",
            (f"sum({RAY('ray_vllm_num_requests_running')})", "running"),
            (f"sum({RAY('ray_vllm_num_requests_waiting')})", "waiting"),
        ),
        lines(
            "Tokens",
            "Tokens per second that the engines read and generate.",
            "suffix: /s",
            (f"sum(rate({RAY('ray_vllm_prompt_tokens_total')}[{RECENT}]))", "read"),
            (f"sum(rate({RAY('ray_vllm_generation_tokens_total')}[{RECENT}]))", "generated"),
        ),
        lines(
            "Key-value cache",
            "Share of the key-value cache that is used, mean and fullest engine; a full one preempts turns.",
            "percentunit",
            (f"avg({RAY('ray_vllm_kv_cache_usage_perc')})", "mean"),
            (f"max({RAY('ray_vllm_kv_cache_usage_perc')})", "fullest"),
            max=1,
        ),
        lines(
            "Prefix cache hits",
            "Share of prompt tokens whose keys and values were cached by an earlier turn.",
            "percentunit",
            (f"{rate_or_none('ray_vllm_prefix_cache_hits_total', CACHE_QUERIES)} / {CACHE_QUERIES}", "hits"),
            max=1,
        ),
        lines(
            "Preemptions",
            "Turns per second that an engine preempts and computes again.",
            "suffix: /s",
            (rate_or_none("ray_vllm_num_preemptions_total", ANY_ENGINE), "preemptions"),
        ),
        lines(
            "Time of a turn",
            "Time to the first token, per further token and to the last one: 99th percentile.",
            "s",
            (quantile(0.99, RAY("ray_vllm_time_to_first_token_seconds_bucket")), "first token"),
            (quantile(0.99, RAY("ray_vllm_request_time_per_output_token_seconds_bucket")), "per further token"),
            (quantile(0.99, RAY("ray_vllm_e2e_request_latency_seconds_bucket")), "whole turn"),
        ),
    ),
)

MACHINES = Row(
    "Machines",
    (
        lines(
            "Processors",
            "Share of its processors that each node uses.",
            "percent",
            (f"max by (instance) ({RAY('ray_node_cpu_utilization')})", "{{instance}}"),
        ),
        lines(
            "Memory",
            "Share of the memory of each node that is used.",
            "percentunit",
            (f"max by (instance) ({RAY('ray_node_mem_used')} / {RAY('ray_node_mem_total')})", "{{instance}}"),
            max=1,
        ),
        stacked(
            "Object store",
            "Bytes in Ray's object store, by location; objects that are spilled to disk slow the run down.",
            "bytes",
            (f"sum by (Location) ({RAY('ray_object_store_memory')})", "{{Location}}"),
        ),
        stacked(
            "Tasks",
            "Ray tasks by state.",
            "none",
            (f"sum by (State) ({RAY('ray_tasks')})", "{{State}}"),
        ),
        stacked(
            "Actors",
            "Ray actors by state: every process of a run is one.",
            "none",
            (f"sum by (State) ({RAY('ray_actors')})", "{{State}}"),
        ),
        lines(
            "Workers lost",
            "Workers per hour that Ray killed for lack of memory, and that ended unexpectedly.",
            "none",
            (f"3600 * {rate_or_none('ray_memory_manager_worker_eviction_total', ANY_NODE)}", "out of memory"),
            (f"3600 * {rate_or_none('ray_node_manager_unexpected_worker_failure_total', ANY_NODE)}", "unexpected"),
        ),
    ),
)

BOARD = Board(
    "hardware",
    "Turnmill / Hardware",
    "Load of GPUs, inference engines and machines.",
    (RAY,),
    (GPUS, ENGINES, MACHINES),
)
