"""Graph to graph: trace, evaluate, forward derivatives, transposition, batching, residuals."""
