"""The worker whose cells are vLLM servers: its eggs, its command line, its words."""
