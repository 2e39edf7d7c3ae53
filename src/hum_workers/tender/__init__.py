"""The program between bee and engine, and its HTTP."""
