"""Emulated slow links on one machine: any transport, with the latency and the bandwidth of another network."""
