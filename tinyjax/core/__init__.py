"""The graph: ops, nodes, abstract values, bodies, rewriting, printing, pytrees, errors, config."""
