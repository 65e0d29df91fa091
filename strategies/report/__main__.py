"""Reports from run records: a text table, plots and a static page.

``python -m strategies.report DIR`` rewrites the report of a run, also while the run goes on;
with ``--compare OUT.html`` several runs meet on one page.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from strategies.report.recorded import ReportError
from strategies.report.write import write_comparison, write_report


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m strategies.report", description=__doc__)
    parser.add_argument("run_dirs", metavar="DIR", nargs="+", type=Path, help="runs/<id>")
    parser.add_argument("--compare", metavar="OUT.html", type=Path, help="page about all DIRs")
    options = parser.parse_args(arguments)
    run_dirs = list(dict.fromkeys(options.run_dirs))
    try:
        for run_dir in run_dirs:
            print(f"{write_report(run_dir)}\n\npage: {run_dir / 'report.html'}\n")
        if options.compare is not None:
            print(f"{write_comparison(run_dirs, options.compare)}\n\npage: {options.compare}")
    except ReportError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}; choose another place", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
