"""`/metrics` of the simulated server: Prometheus text in vLLM's or SGLang's names."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

from autotune.engines.facts import engine_facts
from autotune.simulator.config import EngineConfig
from autotune.simulator.core import EngineCore, Token

_TTFT = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5,
         10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0)  # fmt: skip
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
        20.0, 40.0, 80.0)  # fmt: skip
_LATENCY = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0,
            120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0)  # fmt: skip


class Histogram:
    """A cumulative histogram of seconds with fixed upper bounds."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str, labels: Mapping[str, str]) -> Iterable[str]:
        """Exposition lines without the header."""
        total = 0
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            le = "+Inf" if bound == float("inf") else repr(float(bound))
            yield f"{name}_bucket{_labels({**labels, 'le': le})} {total}"
        yield f"{name}_count{_labels(labels)} {total}"
        yield f"{name}_sum{_labels(labels)} {self._sum}"


class EngineMetrics:
    """What is counted as tokens come out; gauges are read from the engine when asked."""

    def __init__(self) -> None:
        self.generation_tokens = 0
        self.prompt_tokens = 0
        self.ended = {"length": 0, "stop": 0, "abort": 0}
        self._histograms = {
            "ttft": Histogram(_TTFT),
            "itl": Histogram(_ITL),
            "e2e": Histogram(_LATENCY),
            "queue_time": Histogram(_LATENCY),
            "prefill_time": Histogram(_LATENCY),
            "decode_time": Histogram(_LATENCY),
        }
        self._previous: dict[str, float] = {}

    def observe(self, token: Token) -> None:
        """Count one output token, and the request's times when it is the first or the last."""
        self.generation_tokens += 1
        sequence, times = token.sequence, self._histograms
        identity = sequence.request.id
        if token.index == 1:
            self.prompt_tokens += len(sequence.request.prompt)
            times["ttft"].observe(token.at_s - sequence.arrived_s)
        else:
            gap = token.at_s - self._previous[identity]
            times["itl"].observe(gap)
        self._previous[identity] = token.at_s
        if not token.last:
            return
        del self._previous[identity]
        first, scheduled = sequence.first_token_s, sequence.scheduled_s
        if first is None or scheduled is None:
            raise AssertionError("a finished request was never scheduled")
        times["e2e"].observe(token.at_s - sequence.arrived_s)
        times["queue_time"].observe(scheduled - sequence.arrived_s)
        times["prefill_time"].observe(first - scheduled)
        times["decode_time"].observe(token.at_s - first)

    def count_end(self, reason: str) -> None:
        """A request has ended: `length`, `stop` or `abort`."""
        self.ended[reason] += 1

    def exposition(self, core: EngineCore, config: EngineConfig, model: str) -> str:
        """The whole page."""
        labels = {"engine": "0", "model_name": model}
        scheduler = core.scheduler
        blocks = core.memory.num_blocks
        facts = {
            "block_size": config.block_size,
            "cache_dtype": config.kv_cache_dtype,
            "enable_prefix_caching": config.enable_prefix_caching,
            "gpu_memory_utilization": config.gpu_memory_utilization,
            "num_gpu_blocks": blocks,
            "kv_cache_size_tokens": blocks * config.block_size,
            "kv_cache_max_concurrency": blocks * config.block_size / config.max_model_len,
            "simulated": True,
        }
        info = {**{key: str(value) for key, value in facts.items()}, "engine": "0"}
        gauges = {
            "vllm:num_requests_running": float(len(scheduler.running)),
            "vllm:num_requests_waiting": float(len(scheduler.waiting)),
            "vllm:kv_cache_usage_perc": scheduler.pool.usage,
        }
        counters = {
            "vllm:prefix_cache_queries": scheduler.counters.prefix_queries,
            "vllm:prefix_cache_hits": scheduler.counters.prefix_hits,
            "vllm:num_preemptions": scheduler.counters.preemptions,
            "vllm:prompt_tokens": self.prompt_tokens,
            "vllm:generation_tokens": self.generation_tokens,
        }
        lines = ["# simulated: no GPU was involved"]
        lines += [
            "# TYPE vllm:cache_config_info gauge",
            f"vllm:cache_config_info{_labels(info)} 1.0",
        ]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name}{_labels(labels)} {value}"]
        for name, count in counters.items():
            lines += [
                f"# TYPE {name}_total counter",
                f"{name}_total{_labels(labels)} {float(count)}",
            ]
        lines.append("# TYPE vllm:request_success_total counter")
        for reason, count in self.ended.items():
            ended = {**labels, "finished_reason": reason}
            lines.append(f"vllm:request_success_total{_labels(ended)} {float(count)}")
        return "\n".join([*lines, *self._histogram_lines("vllm", labels)]) + "\n"

    def sglang_exposition(self, core: EngineCore, config: EngineConfig, model: str) -> str:
        """The whole page in SGLang's names."""
        names = engine_facts("sglang").metric_names(None)
        labels = {"engine_type": "unified", "model_name": model, "pp_rank": "0", "tp_rank": "0"}
        scheduler, tokens = core.scheduler, core.memory.num_blocks * config.block_size
        gauges = {
            names["running"]: float(len(scheduler.running)),
            names["waiting"]: float(len(scheduler.waiting)),
            names["kv_usage"]: scheduler.pool.usage,
            "sglang:max_total_num_tokens": float(tokens),
            "sglang:num_used_tokens": scheduler.pool.usage * tokens,
        }
        counters = {
            names["preemptions"]: scheduler.counters.preemptions,
            names["prompt_tokens"]: self.prompt_tokens,
            names["prefix_hits"]: scheduler.counters.prefix_hits,
            names["generation_tokens"]: self.generation_tokens,
            names["success"]: self.ended["length"] + self.ended["stop"],
            "sglang:num_aborted_requests_total": self.ended["abort"],
        }
        lines = ["# simulated: no GPU was involved"]
        for name, value in gauges.items():
            lines += [f"# TYPE {name} gauge", f"{name}{_labels(labels)} {value}"]
        for name, count in counters.items():
            lines += [f"# TYPE {name} counter", f"{name}{_labels(labels)} {float(count)}"]
        return "\n".join([*lines, *self._histogram_lines("sglang", labels)]) + "\n"

    def _histogram_lines(self, engine: str, labels: Mapping[str, str]) -> Iterable[str]:
        names = engine_facts(engine).metric_names(None)
        for key, histogram in self._histograms.items():
            if key in names:
                yield f"# TYPE {names[key]} histogram"
                yield from histogram.lines(names[key], labels)


def _labels(labels: Mapping[str, str]) -> str:
    escaped = (
        (key, value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n"))
        for key, value in labels.items()
    )
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}"
