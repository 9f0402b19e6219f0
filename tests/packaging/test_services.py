"""The systemd units are ones that systemd takes, keep secrets out of arguments, and let jobs outlive the agent."""

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from shipped import DEPLOY

from holdfast.node.config import SETTINGS

pytestmark = pytest.mark.spec("N1", "N3", "N7", "N12")

UNITS = ("holdfast-orchestrator", "holdfast-node")


def unit(name: str) -> dict[str, dict[str, str]]:
    """A unit's settings. Repeated ones are not needed here; the last counts."""
    parsed = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parsed.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    parsed.read_string((DEPLOY / "systemd" / f"{name}.service").read_text())
    return {section: dict(parsed[section]) for section in parsed.sections()}


@pytest.mark.parametrize("name", UNITS)
def test_systemd_takes_the_unit(name: str, tmp_path: Path) -> None:
    # Given the unit, with a program that is on this machine
    text = (DEPLOY / "systemd" / f"{name}.service").read_text()
    path = tmp_path / f"{name}.service"
    path.write_text(text.replace("/opt/holdfast/current/bin/holdfast", str(shutil.which("true"))))

    # Then systemd finds nothing in it to complain about
    env = os.environ | {"SYSTEMD_LOG_LEVEL": "warning", "PATH": os.environ["PATH"] + ":/usr/bin:/bin"}
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, env=env, timeout=60
    )
    complaints = [line for line in found.stderr.splitlines() if name in line]
    assert found.returncode == 0 and not complaints, found.stderr

    # And it would notice: a setting that is none is complained about
    path.write_text(path.read_text().replace("[Service]", "[Service]\nRestrt=always"))
    noticed = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, env=env, timeout=60
    )
    assert "Restrt" in noticed.stderr


def test_an_agent_can_end_without_the_jobs_it_started() -> None:
    service = unit("holdfast-node")["Service"]
    # With any other mode systemd would end the shims together with the agent.
    assert service["KillMode"] == "process"
    assert service["Delegate"] == "yes"
    assert service["Restart"] == "always"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    # Its grace is a minute by default: systemd must not be less patient.
    assert int(service["TimeoutStopSec"]) > 60


@pytest.mark.parametrize("name", UNITS)
def test_no_secret_stands_among_the_arguments(name: str) -> None:
    service = unit(name)["Service"]
    assert "EnvironmentFile" in service
    assert not re.search(r"token|password|secret", service["ExecStart"], re.IGNORECASE)


def test_the_settings_beside_the_unit_are_ones_that_a_node_reads() -> None:
    known = {setting.variable for setting in SETTINGS.values()}
    named = re.findall(r"(?m)^#? ?([A-Z_]+)=", (DEPLOY / "systemd" / "node.env").read_text())
    assert {"ORCHESTRATOR_ADDRESS", "HOLDFAST_TOKEN"} <= set(named) <= known


def test_the_orchestrator_is_given_nothing_it_does_not_need() -> None:
    service = unit("holdfast-orchestrator")["Service"]
    assert service["DynamicUser"] == "yes"
    assert service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert service["CapabilityBoundingSet"] == ""


def test_a_node_keeps_what_it_isolates_jobs_with() -> None:
    service = unit("holdfast-node")["Service"]
    # ProtectClock also closes every device that is not named: loop devices for scratch, and GPUs.
    forbidden = {"ProtectClock", "PrivateDevices", "DeviceAllow", "DevicePolicy", "RestrictNamespaces", "PrivateUsers"}
    # The sandbox sets a host name and makes groups.
    forbidden |= {"ProtectHostname", "ProtectControlGroups", "SystemCallFilter", "CapabilityBoundingSet", "User"}
    # Each of these gives every start of the service mounts of its own: an agent would not see the scratch of the jobs
    # that the one before it left running, and what they made would be lost.
    mounts = "ProtectSystem ProtectHome PrivateTmp ProtectKernelModules ProtectKernelLogs ProtectKernelTunables"
    mounts += " ReadOnlyPaths ReadWritePaths InaccessiblePaths BindPaths BindReadOnlyPaths TemporaryFileSystem"
    mounts += " ProtectProc PrivateMounts MountFlags RootDirectory DynamicUser"
    forbidden |= set(mounts.split())
    assert not forbidden & set(service)
