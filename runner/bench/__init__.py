"""`hitlab bench engine`: workloads on a running engine, with the evidence of what its cache did."""
