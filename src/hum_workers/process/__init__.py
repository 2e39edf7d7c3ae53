"""The process tree of one cell: started, contained, watched, ended. `lifecycle` is its face."""
