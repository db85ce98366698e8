"""The view of kernels that run on the workers of a Dask cluster: rows per worker, and sweeps per kind of device."""
