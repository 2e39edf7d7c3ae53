"""The worker whose cells are llama.cpp servers: slices of a model, and who puts them together."""
