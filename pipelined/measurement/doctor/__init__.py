"""Examination of a machine: MPI, threads, cores, memory, devices, links, and advice. Needs neither torch nor MPI."""

from pipelined.measurement.doctor.advice import Advice, advise
from pipelined.measurement.doctor.examination import Examination, examine, examine_alone
from pipelined.measurement.doctor.report import as_text

__all__ = ["Advice", "Examination", "advise", "as_text", "examine", "examine_alone"]
