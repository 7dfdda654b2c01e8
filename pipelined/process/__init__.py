"""One process of a job: how it starts, runs, receives a stop request, and exits.

What ends it, and where that is handled: a wrong flag in `refusal`; a rank that fails in `run`, with `exit`; a rank that
is killed in `watchdog`; an error that nothing catches in `uncaught` if it is one of the job, else in `job_end`; SIGTERM
in `stop_request`.
"""
