"""The nodes and clusters of Ravnest that benchmarks measure."""
