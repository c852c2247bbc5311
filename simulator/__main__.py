"""`python -m simulator`: the simulated engine as a program of its own."""

import sys

from contract.errors import HitLabError
from contract.foreign_text import visible
from simulator.config import SimulatorConfig
from simulator.options import parse_options
from simulator.process import CONFIG_ON_STDIN
from simulator.server import run_simulator


def main() -> int:
    arguments = sys.argv[1:]
    try:
        if arguments == [CONFIG_ON_STDIN]:
            config = SimulatorConfig.model_validate_json(sys.stdin.buffer.readline())
            run_simulator(config, stop_at_eof=True)
        else:
            run_simulator(parse_options(arguments))
    except HitLabError as error:
        print(visible(str(error)), file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main())
