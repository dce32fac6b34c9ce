"""Masking of secrets and prompts, and that diagnosis keeps what it needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.redaction import is_secret_name, mask


@pytest.mark.parametrize(
    "line",
    [
        "non-default args: {'model_tag': 'a/b', 'api_key': ['HIDDENhidden1'], 'port': 8000}",
        "vllm serve m --api-key HIDDENhidden1 --port 1",
        "vllm serve m --api-key=HIDDENhidden1 --port 1",
        "vllm serve m --api-key first-of-two HIDDENhidden1 --port 1",
        "argv: ['vllm', 'serve', '--api-key', 'HIDDENhidden1']",
        "server_args=ServerArgs(model_path='m', api_key='HIDDENhidden1', tp_size=1)",
        "export HF_TOKEN=HIDDENhidden1",
        '{"hf_token": "HIDDENhidden1", "x": 1}',
        "password: HIDDENhidden1",
        "Authorization: Bearer HIDDENhidden1",
        "headers={'Authorization': 'Basic HIDDENhidden1'}",
        "b'authorization', b'x', token='HIDDENhidden1'",
        "using key sk-HIDDENhidden1 now",
        "login with hf_HIDDENhidden1aaaaaaaaaaa",
        "postgres://user:HIDDENhidden1@db/x",
        "req(prompt_token_ids=[1, 2, 3], prompt='HIDDENhidden1 it\\'s', n=1)",
        'Received request c-1: prompt: "it\'s HIDDENhidden1", params: SamplingParams(n=1)',
        "GenerateReqInput(text='HIDDENhidden1', sampling_params={})",
        "messages=[{'role': 'user', 'content': 'a [HIDDENhidden1'}], n=1",
        "prompt: 'cut off HIDDENhidden1",
        "key from file: KNOWN-HIDDENhidden1",
    ],
)
def test_what_must_not_be_seen_is_masked(line: str) -> None:
    masked = mask(line, ["KNOWN-HIDDENhidden1"])
    assert "HIDDENhidden1" not in masked
    assert "***" in masked


@pytest.mark.parametrize(
    "text",
    [
        "NewRequestData(req_id=cmpl-1,prompt_token_ids=[9906,1917,1148],sampling_params=S(n=1))",
        "input_ids=tensor([[9906, 1917]]), x=3",
        "'token_ids': [9906",
    ],
)
def test_token_ids_are_masked_even_when_cut_off(text: str) -> None:
    assert "9906" not in mask(text)
    assert mask(text).startswith(text[:10])


@pytest.mark.parametrize(
    "line",
    [
        "max_num_batched_tokens (2048) is smaller than max_model_len (40960)",
        "non-default args: {'max_num_batched_tokens': 2048, 'tokenizer': 'a/b', 'max_tokens': 5}",
        "eos_token='</s>', skip_tokenizer_init=False, tokens per second: 12.5",
        "api_key=None, hf_token=None, ssl_keyfile_password=None",
        "error: argument --api-key: expected at least one argument",
        "vllm: error: unrecognized arguments: --max-num-token-batched 5",
        "time_to_first_token: 0.25, inter_token_latency=0.01",
        "--hf-token is not supported by this version",
        "Avg prompt throughput: 3.2 tokens/s, Running: 1 reqs",
        "GPU KV cache size: 12,345 tokens",
        "SchedulerOutput(num_scheduled_tokens={'a': 3}, total_num_scheduled_tokens=3)",
    ],
)
def test_what_diagnosis_needs_stays(line: str) -> None:
    assert mask(line) == line


def test_only_the_value_goes_and_the_rest_of_the_line_stays() -> None:
    line = "args: {'api_key': ['sk-0123456789abcdef'], 'port': 8000}"
    assert mask(line) == "args: {'api_key': ***, 'port': 8000}"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True), ("--api-key", True), ("VLLM_API_KEY", True),
        ("AWS_SECRET_ACCESS_KEY", True), ("ssl-keyfile-password", True),
        ("max-num-batched-tokens", False), ("TOKENIZERS_PARALLELISM", False),
        ("tokenizer", False), ("eos_token", False), ("PATH", False),
    ],
)  # fmt: skip
def test_secret_names_are_told_from_the_names_of_this_trade(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


SECRETS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), min_size=8, max_size=30)


@given(SECRETS, st.text(max_size=40), st.text(max_size=40))
def test_a_known_secret_never_survives(secret: str, before: str, after: str) -> None:
    if secret in "***" or set(secret) <= {"*"}:
        return
    assert secret not in mask(f"{before} {secret} {after}", [secret])


@given(st.text(max_size=200), st.lists(st.text(max_size=12), max_size=3))
def test_masking_any_text_works_and_is_stable(line: str, secrets: list[str]) -> None:
    once = mask(line)
    assert mask(once) == once
    assert isinstance(mask(line, secrets), str)
