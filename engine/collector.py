"""Python's garbage collector in a process that only serves: it has little to find, and much to walk through.

Everything here is freed by counting references; cycles are few and small. What the collector walks through grows with
the suspended rollouts, and its full passes stop all streams meanwhile. So what lives since the start is set aside, and
young objects are looked at less often. `suspended lab scale` measures this setting beside the interpreter's own, with up
to 10,000 suspended rollouts.
"""

import gc
from typing import Final

THRESHOLDS: Final = (10_000, 20, 50)
"""Objects made since the last look at the youngest; looks at the younger generation before one at the next. (700, 10, 10)"""


def settle() -> None:
    """Once everything is loaded and before anything is served. For the process, so it is for a command to decide."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
