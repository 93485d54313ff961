"""Parts that the kernels for TPUs and GPUs share; `pallas` dispatches."""
