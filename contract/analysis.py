"""The analysis: what was asked for, what the data was built for, and what the engine did (reference 4.5)."""

from typing import Any

from contract.manifest import Manifest
from contract.scenario import Validation


def prepared_analysis(manifest: dict[str, Any], validation: Validation) -> dict[str, Any]:
    """The analysis of data that has not been sent yet, from its manifest."""
    prefix_cache = manifest["prefix_cache"]
    difference_pp = prefix_cache["target_signed_difference_pp"]
    warnings = target_warnings(prefix_cache, validation)
    return {
        "schema_version": "1.0",
        "run_id": manifest["run_id"],
        "status": "prepared",
        "requested_target_hit_rate": prefix_cache["requested_target_hit_rate"],
        "effective_target_hit_rate": prefix_cache["effective_target_hit_rate"],
        "theoretical_hit_rate": prefix_cache["theoretical_hit_rate"],
        "target_difference_pp": abs(difference_pp),
        "target_signed_difference_pp": difference_pp,
        "target_absolute_difference_pp": abs(difference_pp),
        "validation": {
            "status": "PASS_WITH_WARNING" if warnings else "PASS",
            "target_reachable": prefix_cache["target_reachable"],
            "warning_only": True,
            "affects_exit_code": False,
        },
        "theory": manifest["theory"],
        "trajectory": manifest["trajectory"],
        "warnings": warnings,
    }


def prepared_image_analysis(manifest: dict[str, Any]) -> dict[str, Any]:
    """The analysis of multimodal data that has not been sent yet. There is no target: what hits is known after a run."""
    ((name, dataset),) = manifest["datasets"].items()
    image = {key: value for key, value in dataset["image"].items() if key != "data_url"}
    return {
        "schema_version": "1.0",
        "benchmark_mode": "mm",
        "run_id": manifest["run_id"],
        "status": "prepared",
        "requested_target_hit_rate": None,
        "effective_target_hit_rate": None,
        "theoretical_hit_rate": None,
        "validation": {"status": "PASS", "warning_only": True, "affects_exit_code": False},
        "data": {
            "scenario": name,
            "request_count": manifest["request_count"],
            "images_per_request": dataset["image_count_per_request"],
            "text_tokens": manifest["text_tokens"],
            "output_tokens": manifest["output_tokens"],
            "image": image,
        },
        "warnings": [],
    }


def target_warnings(prefix_cache: dict[str, Any], validation: Validation) -> list[dict[str, Any]]:
    """TARGET_UNREACHABLE and TARGET_DEVIATION, where they apply."""
    warnings: list[dict[str, Any]] = []
    if not prefix_cache["target_reachable"]:
        warnings.append(
            {
                "code": "TARGET_UNREACHABLE",
                "requested_target_hit_rate": prefix_cache["requested_target_hit_rate"],
                "reachable_min": prefix_cache["reachable_min"],
                "reachable_max": prefix_cache["reachable_max"],
            }
        )
    if prefix_cache["target_absolute_difference_pp"] > validation.target_warning_pp:
        warnings.append(
            {"code": "TARGET_DEVIATION", "difference_pp": prefix_cache["target_absolute_difference_pp"]}
        )
    return warnings


def manifest_validation(manifest: Manifest) -> Validation:
    """The warning thresholds that the data was prepared with."""
    return Validation.model_validate(manifest.effective_config["validation"])
