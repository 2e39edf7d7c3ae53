"""Where vLLM keeps the names of its methods of quantization, which its help does not list."""

QUANTIZATION_METHODS = ["awq", "fp8", "gptq", "bitsandbytes"]
