"""What `trtllm-serve` takes, by version, as data (see README.md there). `backends.tensorrt_llm_reference` reads it."""
