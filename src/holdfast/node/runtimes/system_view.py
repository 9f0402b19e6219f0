"""What a sandbox shows of its machine's system, each entry with its reason. Everything is read-only, and readable only
where any user of the machine may read it. Nothing else of `/etc` and `/var` is shown: it says who works here, and may
hold secrets."""

import glob
import os
from typing import NamedTuple

from holdfast.passing import exists


class SystemPath(NamedTuple):
    path: str
    """A path, or a pattern of paths."""
    why: str


SYSTEM = (
    SystemPath("/usr", "programs and libraries"),
    SystemPath("/bin", "programs"),
    SystemPath("/sbin", "programs"),
    SystemPath("/lib", "libraries"),
    SystemPath("/lib32", "libraries"),
    SystemPath("/lib64", "libraries, and the loader of every program"),
    SystemPath("/etc/alternatives", "which of several programs a name such as java or awk means"),
    SystemPath("/etc/ld.so.cache", "where libraries are"),
    SystemPath("/etc/ld.so.conf", "where libraries are, for ldconfig and Python's ctypes"),
    SystemPath("/etc/ld.so.conf.d", "where libraries are, for ldconfig and Python's ctypes"),
    SystemPath("/etc/localtime", "the time zone"),
    SystemPath("/etc/timezone", "the time zone's name"),
    SystemPath("/etc/locale.alias", "names of locales"),
    SystemPath("/etc/os-release", "the distribution, which build scripts and installers ask for"),
    SystemPath("/etc/debian_version", "the distribution"),
    SystemPath("/etc/nsswitch.conf", "how names are resolved, for programs that do not fall back to the default"),
    SystemPath("/etc/protocols", "names of network protocols"),
    SystemPath("/etc/services", "names of network services"),
    SystemPath("/etc/host.conf", "how names are resolved"),
    SystemPath("/etc/gai.conf", "how addresses are sorted"),
    SystemPath("/etc/mime.types", "types of files by their ending"),
    SystemPath("/etc/magic", "types of files by their content"),
    SystemPath("/etc/terminfo", "terminals"),
    SystemPath("/etc/ssl/openssl.cnf", "OpenSSL's settings, without which its commands end with an error"),
    SystemPath("/etc/ssl/certs", "certificate authorities, which programs load also without a network"),
    SystemPath("/etc/ca-certificates", "certificate authorities"),
    SystemPath("/etc/ca-certificates.conf", "certificate authorities"),
    SystemPath("/etc/pki/tls/certs", "certificate authorities"),
    SystemPath("/etc/pki/ca-trust/extracted", "certificate authorities"),
    SystemPath("/etc/crypto-policies", "which ciphers are allowed"),
    SystemPath("/etc/fonts", "fontconfig, for every program that draws text"),
    SystemPath("/var/cache/fontconfig", "fontconfig's cache: without it every job reads all fonts first"),
    SystemPath("/etc/R", "R does not start without it"),
    SystemPath("/etc/java-*-openjdk", "Java does not start without it"),
    SystemPath("/etc/perl", "Perl's settings and local libraries"),
    SystemPath("/etc/python3*", "Python's settings, for programs of the distribution"),
    SystemPath("/etc/php", "PHP's settings and extensions"),
    SystemPath("/etc/ImageMagick-*", "ImageMagick's limits and coders"),
    SystemPath("/etc/groff", "manual pages"),
    SystemPath("/etc/xml", "XML catalogues"),
    SystemPath("/etc/sgml", "SGML catalogues"),
    SystemPath("/etc/texmf", "TeX's settings"),
    SystemPath("/var/lib/texmf", "TeX's formats"),
    SystemPath("/etc/ghostscript", "fonts of Ghostscript"),
    SystemPath("/etc/octave.conf", "Octave's settings"),
    SystemPath("/etc/OpenCL", "OpenCL's drivers"),
    SystemPath("/etc/vulkan", "Vulkan's drivers"),
    SystemPath("/etc/glvnd", "OpenGL's drivers"),
    SystemPath("/etc/openmpi", "MPI's settings"),
    SystemPath("/etc/papersize", "the default size of paper, for R, TeX and Ghostscript"),
)

CPU_LISTS = tuple(f"/sys/devices/system/cpu/{name}" for name in ("online", "possible", "present"))
"""Files that list the machine's processors. A sandbox shows as many as its job asked for."""


def options() -> list[str]:
    """Options of bwrap that show the machine's own system folders, read-only, with the same layout."""
    words: list[str] = []
    for shown in SYSTEM:
        for path in sorted(glob.glob(shown.path)) if "*" in shown.path else [shown.path]:
            if os.path.islink(path):
                words += ["--symlink", os.readlink(path), path]
            elif exists(path):
                words += ["--ro-bind", path, path]
    return words
