"""The process that forms clusters: it waits for nodes, plans a generation, supervises it, and writes the next one."""
