"""Train a model larger than any of the PCs that train it: `python -m apps.ravnest plan --pool pool.csv --clusters 2`.

    plan          form clusters of a pool of PCs, and cut the model in each

Read the flags, then run one command. Planning needs neither torch nor a network.
"""

import sys
import traceback

from apps.ravnest.flags import Plan
from pipelined import __version__
from pipelined.errors import UsageError
from pipelined.process.exit import end_process, print_line, print_to_stderr, silence_stdout
from pipelined.process.run import complaint

DONE, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130
PROGRAM = "python -m apps.ravnest"
ABOUT = f"""Plan how uneven PCs train a model that none of them can hold (docs/ravnest.md).

{PROGRAM} plan --pool pool.csv --clusters 2 --preset tiny

--version shows the version."""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code (0 done, 1 failure, 2 usage, 130 interrupted)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--version" in arguments:
        print(f"pipelined {__version__}")
        return DONE
    try:
        _work(parse(arguments))
    except UsageError as error:
        print_to_stderr(complaint(error, PROGRAM))
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
    except Exception as error:
        print_to_stderr("".join(traceback.format_exception(error)).rstrip("\n"))
        return FAILED
    return DONE


def parse(arguments: list[str]) -> Plan:
    """Parse the command line into one command's flags.

    Raises:
        SystemExit: 0 after --help, 2 on a wrong flag (tyro names it).
    """
    import tyro

    return tyro.extras.subcommand_cli_from_dict(
        {"plan": Plan}, args=arguments, prog=PROGRAM, description=ABOUT, config=(tyro.conf.OmitArgPrefixes,)
    )


def _work(flags: Plan) -> None:
    from apps.ravnest.plan import plan

    plan(flags, print_line)


if __name__ == "__main__":
    end_process(main())
