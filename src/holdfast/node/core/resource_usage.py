"""Decides from measurements whether a body uses more than its order allows, and describes each limit in words.

This covers the limits that the operating system does not enforce. Pure.
"""

from holdfast.node.core.order import Order


def excess(order: Order, cpu_ms: int, memory_mib: int, disk_mib: int, oom_kills: int) -> str:
    """The failure code of a body that must be stopped for exceeding a limit; empty while it keeps within its limits.

    If the kernel killed one process of the body for exceeding the body's memory limit, the whole body is stopped: the
    other processes may not notice."""
    memory_max, disk_max = order.resources.get("memory_mib", 0), order.resources.get("disk_mib", 0)
    cpu_s_max = order.limits.get("cpu_s", 0)
    if oom_kills or 0 < memory_max < memory_mib:
        return "oom_job"
    if 0 < disk_max < disk_mib:
        return "disk_quota"
    if 0 < cpu_s_max * 1000 <= cpu_ms:
        return "time_limit"
    return ""


def words(order: Order, code: str) -> str:
    """What happened, for the job's owner: which limit, and its value."""
    said = {
        "oom_job": f"it used more than the {order.resources.get('memory_mib', 0)} MiB of memory it asked for",
        "oom_node": "the machine ran out of memory, and its kernel ended the job",
        "disk_quota": f"it used up the {order.resources.get('disk_mib', 0)} MiB of disk it asked for",
        "node_disk_full": "the machine's disk was full",
        "time_limit": f"it used {order.limits.get('cpu_s', 0)} s of processor time, its limit",
    }
    return said.get(code, "")
