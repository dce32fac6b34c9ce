#!/usr/bin/env bash
# h200-lossless, trial 0: today's settings, kept
# No setting could be told apart from today's. The best candidate measured 0.91 s against 0.93 s.
# measured: ttft_p50 324.9 ms [256.7 ms, 403.6 ms]
# measured: ttft_p95 930.9 ms [652.8 ms, 1,089 ms]
# measured: tpot_p50 33.76 ms [25.52 ms, 45.49 ms]
# engine: vllm 0.26.0
# model: /tmp/model, revision not pinned
# machine: 1 x NVIDIA H200, driver 580.159.04
# date: 2026-12-01T04:42:11+00:00; autotune 0.1.0; workload rag-long.jsonl 4b8105971f9f5313
# differs from the measured launch: listen address and port (HOST, PORT)
# check it: autotune verify 2026-12-01-h200-lossless
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
export NCCL_VERSION=2.28.3-1
export TORCH_CUDA_ARCH_LIST=9.0a
export VLLM_CACHE_ROOT=/tmp/vllm-cache
export VLLM_NO_USAGE_STATS=1
export VLLM_USE_FLASHINFER_SAMPLER=0
export VLLM_WORKER_MULTIPROC_METHOD=fork
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
