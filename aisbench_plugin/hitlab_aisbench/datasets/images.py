"""Prepared requests with images as an AISBench dataset: the texts; the image is the model's."""

from typing import Any

from hitlab_aisbench.datasets.prefix_cache import PrefixCacheDataset


class ImageDataset(PrefixCacheDataset):
    """The rows of `<run_id>.<scenario>.requests.jsonl`. None has a lane: the service chooses the rank."""

    def columns_of(self, row: dict[str, Any], position: int, path: str) -> dict[str, Any]:
        if row["request_id"] != f"request-{position:08d}":
            raise ValueError(f"{path}:{position + 1}: the rows are not in final order; prepare them again")
        return {
            "max_out_len": row["max_out_len"],
            "group": row["image_refs"][0].split(":")[1],
            "question": row["question"],
            "answer": row["answer"],
            "request_id": row["request_id"],
            "dp_rank": None,
            "lane_sequence": None,
        }
