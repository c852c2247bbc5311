"""Requests with one fixed image, taken as it is from MMMU's Parquet files."""
