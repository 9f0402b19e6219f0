"""The agent's process, which `holdfast node` turns into. Started only by `handover`."""

import sys

from holdfast.lean import spare_imports
from holdfast.node.handover import taken_over

spare_imports()

if __name__ == "__main__":
    config = taken_over(sys.argv[1:])
    from holdfast.node.run import run_node

    sys.exit(run_node(config))
