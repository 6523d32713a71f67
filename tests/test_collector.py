"""The garbage collector of a serving process."""

import json
import subprocess
import sys

from engine.collector import THRESHOLDS

SETTLED = """
import gc, json
from engine.collector import settle
settle()
print(json.dumps([gc.get_threshold(), gc.get_freeze_count(), len(gc.get_objects())]))
"""


def test_what_lives_since_the_start_is_set_aside():
    """Nearly all objects are frozen, and the thresholds are the ones that were measured."""
    done = subprocess.run(
        [sys.executable, "-c", SETTLED], capture_output=True, text=True, check=True, timeout=60
    )
    thresholds, frozen, left = json.loads(done.stdout)
    assert tuple(thresholds) == THRESHOLDS
    assert frozen > 10 * left
