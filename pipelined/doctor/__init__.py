"""What a user has: MPI, threads, cores, memory, devices, links; and what to change. Nothing here needs torch or MPI."""

from pipelined.doctor.advice import Advice, advise
from pipelined.doctor.examination import Examination, examine, examine_alone
from pipelined.doctor.report import as_text

__all__ = ["Advice", "Examination", "advise", "as_text", "examine", "examine_alone"]
