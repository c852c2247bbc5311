"""Is the stored image still an image of the native size that the scenario asks for?"""

from contract.errors import ArtifactError
from contract.multimodal import LAYOUTS, ImageDataset
from generator.multimodal.selection import decode


def check_image(dataset: ImageDataset) -> None:
    """Decode the image of a manifest. Raises ArtifactError when it is broken or of another size or format."""
    layout, image = LAYOUTS[dataset.name], dataset.document["image"]
    decoded = decode(
        dataset.image_bytes(), lambda width, height: (width, height) == (layout.width, layout.height)
    )
    if decoded is None:
        raise ArtifactError(f"{dataset.name}: the stored image cannot be decoded; run prepare again")
    found = (decoded.width, decoded.height, decoded.format, decoded.mime_type)
    if found != (layout.width, layout.height, image["format"], image["mime_type"]) or found[:2] != (
        image["width"],
        image["height"],
    ):
        raise ArtifactError(
            f"{dataset.name}: the stored image is {decoded.format} of {decoded.width}x{decoded.height}, "
            f"{layout.width}x{layout.height} was prepared; run prepare again"
        )
