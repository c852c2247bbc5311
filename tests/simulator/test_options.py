"""Command line and configuration."""

import pytest
from pydantic import ValidationError

from contract.errors import ScenarioError
from simulator.config import SimulatorConfig
from simulator.options import checked_config, parse_options


def test_no_arguments_are_the_defaults() -> None:
    assert parse_options([]) == SimulatorConfig()


def test_every_field_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIM_KEY", "canary")
    line = (
        "--model-name m --tokenizer t --tokenizer-revision r --trust-remote-code --vocab-size 9 --ranks 3 "
        "--block-size 16 --blocks-per-rank 99 --no-prefix-caching --max-model-len 64 "
        "--max-num-batched-tokens 7 --max-num-seqs 5 --prefill-tokens-per-second 1e3 "
        "--decode-tokens-per-second 50 --speed-factor 2.5 --no-prompt-tokens-details --no-dev-mode "
        "--multimodal --tokens-per-image 256 --patch-pixels 14 "
        "--host ::1 --port 81 --api-key-env SIM_KEY"
    )
    config = parse_options(line.split())
    changed = {
        name
        for name in SimulatorConfig.model_fields
        if getattr(config, name) != getattr(SimulatorConfig(), name)
    }
    assert changed == set(SimulatorConfig.model_fields)
    assert config.api_key is not None
    assert config.api_key.get_secret_value() == "canary"
    assert "canary" not in repr(config)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--ranks 0", r"--ranks: .* greater than or equal to 1, found '0'"),
        ("--ranks two --port 70000", r"--ranks: .*found 'two'; --port: .*found '70000'"),
        ("--speed-factor 0", "--speed-factor: .*greater than 0"),
        ("--decode-tokens-per-second -1", "--decode-tokens-per-second"),
        ("--prefill-tokens-per-second inf", "--prefill-tokens-per-second: .*finite"),
        ("--blocks-per-rank 4", "cannot hold one request of max_model_len=16384: set at least 513"),
        ("--api-key-env NOT_THERE_AT_ALL", "NOT_THERE_AT_ALL is not set"),
    ],
)
def test_what_is_not_usable_is_named_with_its_option(arguments: str, complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint):
        parse_options(arguments.split())


def test_the_smallest_pool_holds_exactly_the_longest_request() -> None:
    assert SimulatorConfig(max_model_len=100, block_size=10, blocks_per_rank=11)
    with pytest.raises(ValidationError, match="set at least 12"):
        SimulatorConfig(max_model_len=101, block_size=10, blocks_per_rank=11)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ScenarioError, match="--block-sise"):
        checked_config({"block_sise": 3})


def test_step_times_follow_the_rates() -> None:
    free = SimulatorConfig()
    assert free.step_seconds(1000, decoding=True) == 0
    slow = SimulatorConfig(prefill_tokens_per_second=1000, decode_tokens_per_second=50, speed_factor=4)
    assert slow.step_seconds(500, decoding=False) == pytest.approx(0.125)
    assert slow.step_seconds(0, decoding=True) == pytest.approx(0.005)
    assert slow.step_seconds(500, decoding=True) == pytest.approx(0.13)
