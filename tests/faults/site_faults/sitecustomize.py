"""Loaded by Python itself at the start of a process that has this folder on its PYTHONPATH: see fault_sites.py."""

import importlib.util
import os
import sys
from pathlib import Path

_control = os.environ.get("HOLDFAST_TEST_FAULT_SITES")
if _control:
    _spec = importlib.util.spec_from_file_location("fault_sites", Path(__file__).parent.parent / "fault_sites.py")
    assert _spec is not None and _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["fault_sites"] = _module
    _spec.loader.exec_module(_module)
    _module.install(_control)
