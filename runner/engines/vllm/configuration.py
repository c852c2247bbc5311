"""From a scenario to the container that serves its model. Reads folders and the environment, changes nothing."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contract.documents import canonical_sha256
from contract.errors import ScenarioError
from contract.scenario import Scenario
from contract.scenario.model import VARIABLES_OF_HITLAB
from runner.engines.vllm.bounds import (
    Mount,
    allowed_roots,
    checked_devices,
    mounts_of_model,
    read_only_mount,
)

PORT = 8000
IMAGE_VARIABLE = "HITLAB_VLLM_IMAGE"
DEFAULT_IMAGE = "vllm/vllm-openai:v0.33.0"
NETWORK_VARIABLE = "HITLAB_NETWORK"
DEMO_MODEL_LABEL = "com.hitlab.demo-model"
BUILTIN = "builtin:"
MODEL_FILES = ("config.json", "params.json")
"""The second is Mistral's own format."""

COMMAND = ("vllm", "serve")
COMMAND_WITH_SECRETS = (
    "/bin/sh",
    "-c",
    'while IFS= read -r line && [ -n "$line" ]; do export "$line"; done; exec vllm serve "$@" </dev/null',
    "vllm",
)
"""Variables of `env_from` arrive on standard input, one a line: Docker shows everybody a container's environment."""


@dataclass(frozen=True)
class Volume:
    """A named volume at `target`, writable."""

    name: str
    target: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Configuration:
    """All that makes one engine another. `model` None: the demo model that the image brings along."""

    image: str
    model: str | None
    arguments: tuple[str, ...]
    environment: dict[str, str]
    env_from: tuple[str, ...]
    mounts: tuple[Mount, ...]
    devices: tuple[str, ...]
    gpus: str | int | tuple[str, ...] | None
    shm_size: str
    network: str | None
    hf_home: Mount | None = None
    """The host's cache of the hub, in the place of the volume."""
    volumes: "tuple[Volume, ...]" = ()

    @property
    def of_hub(self) -> bool:
        """Whether the model has to come from the hub."""
        return self.model is not None and not any(mount.target == self.model for mount in self.mounts)

    @property
    def entrypoint(self) -> tuple[str, ...]:
        return COMMAND_WITH_SECRETS if self.env_from else COMMAND

    def command(self, demo_model: str | None) -> tuple[str, ...]:
        """What follows the entrypoint. Raises ScenarioError when the image has no demo model and one is needed."""
        model = self.model or demo_model
        if model is None:
            raise ScenarioError(
                f"tokenizer.path: builtin:demo has no model in {self.image}; use the image vllm-cpu "
                "(make images), or name a directory that holds a model"
            )
        return (model, *self.arguments)

    def sha256(self, image_id: str) -> str:
        """Equal for engines that are the same; an image that was built anew under its name makes another engine."""
        return canonical_sha256({"image_id": image_id, **dataclasses.asdict(self)})


def configuration(scenario: Scenario, scenario_folder: Path, environment: Mapping[str, str]) -> Configuration:
    """Raises ScenarioError: no model there, a mount or device out of bounds, a variable that is not set."""
    engine, tokenizer, service = scenario.engine, scenario.tokenizer, scenario.service
    roots = _roots(tokenizer.path, scenario_folder, environment)
    model, model_mounts = _model(tokenizer.path, roots)
    arguments = [
        *engine.args,  # first: whatever they say, what follows wins
        *("--served-model-name", service.model),
        *("--port", str(PORT)),
        *("--data-parallel-size", str(service.dp_size)),
        *("--block-size", str(tokenizer.block_size)),
        "--enable-prefix-caching",
        "--enable-prompt-tokens-details",
    ]
    if engine.kv_cache_gib is not None:
        arguments += ["--kv-cache-memory-bytes", str(round(engine.kv_cache_gib * 2**30))]
    if tokenizer.revision is not None and model is not None and not model_mounts:
        arguments += ["--revision", tokenizer.revision]
    if tokenizer.trust_remote_code:
        arguments.append("--trust-remote-code")
    fixed = {
        "VLLM_SERVER_DEV_MODE": "1",  # opens the reset of the prefix cache, and more: so the port stays private
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    if model_mounts:
        fixed["HF_HUB_OFFLINE"] = "1"
    own = set(VARIABLES_OF_HITLAB).intersection(engine.env_from)
    if own:
        raise ScenarioError(f"engine.env_from: {', '.join(sorted(own))} is set by HitLab; remove it")
    twice = set(engine.env).intersection(engine.env_from)
    if twice:
        raise ScenarioError(f"engine.env: {', '.join(sorted(twice))} is in engine.env_from as well; keep one")
    return Configuration(
        image=engine.image or environment.get(IMAGE_VARIABLE) or DEFAULT_IMAGE,
        model=model,
        arguments=tuple(arguments),
        environment=engine.env | fixed,
        env_from=tuple(dict.fromkeys(engine.env_from)),
        mounts=_without_repeats(
            [
                *model_mounts,
                *(read_only_mount(Path(path), roots, "engine.mounts") for path in engine.mounts),
            ]
        ),
        devices=checked_devices(engine.devices, environment),
        gpus=tuple(str(gpu) for gpu in engine.gpus) if isinstance(engine.gpus, list) else engine.gpus,
        shm_size=engine.shm_size,
        network=environment.get(NETWORK_VARIABLE) or None,
        hf_home=_hf_home(scenario, roots),
    )


def _hf_home(scenario: Scenario, roots: tuple[Path, ...]) -> Mount | None:
    engine = scenario.engine
    if engine.hf_home is None:
        if engine.download:
            raise ScenarioError(
                "engine.download: goes with engine.hf_home; without it models are downloaded into a volume anyway"
            )
        return None
    mount = read_only_mount(Path(engine.hf_home), roots, "engine.hf_home")
    return dataclasses.replace(mount, read_only=not engine.download)


def secrets_of(configuration: Configuration, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of `env_from` with their values. Raises ScenarioError for one that cannot be handed on."""
    values: dict[str, str] = {}
    for name in configuration.env_from:
        value = environment.get(name)
        if value is None:
            raise ScenarioError(f"engine.env_from: {name} is not set in the environment; set it or remove it")
        if "\n" in value:
            raise ScenarioError(f"engine.env_from: the value of {name} has more than one line")
        values[name] = value
    return values


def _model(named: str, roots: tuple[Path, ...]) -> tuple[str | None, tuple[Mount, ...]]:
    """What to serve, and the mounts that takes: none for a model of the hub or of the image."""
    if named.startswith(BUILTIN):
        return None, ()
    path = Path(named)
    if path.is_file():
        path = path.parent
    if not path.is_dir():
        if path.is_absolute() or named.startswith("."):
            raise ScenarioError(
                f"tokenizer.path: {named} does not exist; a managed vLLM serves the model there"
            )
        return named, ()
    if not any((path / name).exists() for name in MODEL_FILES):
        raise ScenarioError(
            f"tokenizer.path: {path} holds no model (no {' or '.join(MODEL_FILES)}); "
            "a managed vLLM serves the model that lies beside the tokenizer"
        )
    return str(path), mounts_of_model(path, roots)


def _roots(tokenizer: str, scenario_folder: Path, environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where nothing else is named: the scenario's folder, the model, and the hub's cache of that one model."""
    defaults = [scenario_folder]
    path = Path(tokenizer)
    if path.is_absolute():
        defaults.append(path.parent if path.is_file() else path)
        defaults += [folder.parent for folder in path.parents if folder.name == "snapshots"]
    return allowed_roots(environment, defaults)


def _without_repeats(mounts: list[Mount]) -> tuple[Mount, ...]:
    """Docker refuses two mounts at one place."""
    return tuple({mount.target: mount for mount in mounts}.values())
