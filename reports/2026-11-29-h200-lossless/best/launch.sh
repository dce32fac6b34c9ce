#!/usr/bin/env bash
# h200-lossless, trial 0: today's settings, kept
# No advice: only today's settings were measured. No other settings gave a measurement to compare with.
# measured: ttft_p50 524.6 ms [439.5 ms, 587.5 ms]; baseline 524.6 ms [439.5 ms, 587.5 ms]
# measured: ttft_p95 1,021 ms [954.9 ms, 1,284 ms]; baseline 1,021 ms [954.9 ms, 1,284 ms]
# measured: tpot_p50 35.88 ms [30.14 ms, 45.02 ms]; baseline 35.88 ms [30.14 ms, 45.02 ms]
# engine: vllm 0.26.0
# model: /tmp/model, revision not pinned
# machine: 2 x NVIDIA H200, driver 580.159.04
# date: 2026-11-29T22:51:58+00:00; autotune 0.1.0; workload rag-long.jsonl 4b8105971f9f5313
# differs from the measured launch: listen address and port (HOST, PORT)
# check it: autotune verify A
# go back: rollback.sh
# generated; edits are not kept by `autotune script`

set -euo pipefail

HOST="${HOST:-127.0.0.1}"  # 0.0.0.0 to be reached from outside
PORT="${PORT:-8000}"

if ! command -v -- python3 >/dev/null; then
  echo "${0##*/}: command not found:" python3 >&2
  exit 127
fi

export CUDA_HOME=/usr/local/cuda
export CUDA_VERSION=13.0.2
export HF_HUB_OFFLINE=1
export NCCL_NVLS_ENABLE=0
export NCCL_VERSION=2.28.3-1
export TORCH_CUDA_ARCH_LIST=9.0a
export TORCH_SYMM_MEM_DISABLE_MULTICAST=1
export VLLM_CACHE_ROOT=/tmp/vllm-cache-A
export VLLM_NO_USAGE_STATS=1
export VLLM_USE_FLASHINFER_SAMPLER=0
export CUDA_VISIBLE_DEVICES=0

cmd=(
  python3
  -m
  vllm.entrypoints.cli.main
  serve
  /tmp/model
  --host
  "$HOST"
  --port
  "$PORT"
  --load-format
  dummy
  --served-model-name
  m
  --max-model-len
  32768
)

exec "${cmd[@]}" "$@"
