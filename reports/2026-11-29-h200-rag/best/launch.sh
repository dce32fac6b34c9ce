#!/usr/bin/env bash
# h200-rag, trial 3: best settings
# Change the launch settings: the wait for the first token is 40 % shorter. TTFT p95 goes from 524 ms to 314 ms, 40 % shorter (95 % interval 38 to 42 %), in 3 paired launches on traffic the search never saw.
# measured: ttft_p50 111 ms [82.18 ms, 144.6 ms]; baseline 192.8 ms [142.9 ms, 242.4 ms]
# measured: ttft_p95 314.1 ms [268.5 ms, open]; baseline 523.9 ms [448.5 ms, open]
# measured: tpot_p50 4.28 ms [3.554 ms, 5.255 ms]; baseline 7.287 ms [6.086 ms, 8.458 ms]
# engine: vllm 0.26.0
# model: /tmp/model, revision not pinned
# machine: 1 x NVIDIA H200, driver 580.159.04
# date: 2026-11-29T16:47:11+00:00; autotune 0.1.0; workload rag-long.jsonl 800e62dc5e82bb5c
# differs from the measured launch: listen address and port (HOST, PORT)
# check it: autotune verify study
# go back: rollback.sh
# generated; edits are not kept by `autotune script`

set -euo pipefail

HOST="${HOST:-127.0.0.1}"  # 0.0.0.0 to be reached from outside
PORT="${PORT:-8000}"

if ! command -v -- python3 >/dev/null; then
  echo "${0##*/}: command not found:" python3 >&2
  exit 127
fi

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
  --kv-cache-dtype  # halves what decoding reads (lossy: can change answers)
  auto
  --max-num-batched-tokens  # prefill chunk budget of a step
  32768
  --max-num-seqs  # how many run at once
  64
  --quantization  # halves the weights and the arithmetic (lossy: can change answers)
  fp8
)

exec "${cmd[@]}" "$@"
