"""What pipelined waits with: tasks, notifiers, time-outs, back-off, latency estimates, real and virtual clocks."""
