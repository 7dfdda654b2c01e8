"""`--schedule ravnest`: the ranks of a job as the nodes of Ravnest's clusters."""
