"""Decides whether a body uses more than its order allows, by what was measured, and puts every limit into words.

What the kernel holds a body to, it cannot exceed; this is for the rest. Pure.
"""

from holdfast.node.core.order import Order


def excess(order: Order, cpu_ms: int, memory_mib: int, disk_mib: int, oom_kills: int) -> str:
    """The failure's code for a body that must be stopped for what it uses; empty while it keeps within its limits.

    A body of which the kernel ended a process for exceeding the body's own memory is ended whole: what is left of it
    cannot be trusted to notice."""
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
    """What happened, for the job's owner: which limit, and how much it is."""
    said = {
        "oom_job": f"it used more than the {order.resources.get('memory_mib', 0)} MiB of memory it asked for",
        "oom_node": "the machine ran out of memory, and its kernel ended the job",
        "disk_quota": f"it used up the {order.resources.get('disk_mib', 0)} MiB of disk it asked for",
        "node_disk_full": "the machine's disk was full",
        "time_limit": f"it used {order.limits.get('cpu_s', 0)} s of processor time, its limit",
    }
    return said.get(code, "")
