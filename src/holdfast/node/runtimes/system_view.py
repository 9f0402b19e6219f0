"""What a sandbox shows of its machine's system, each entry with its reason. Everything is read-only, and readable only
where any user of the machine may read it. Nothing else of `/etc` and `/var` is shown: it says who works here, and may
hold secrets."""

import glob
import os
from typing import NamedTuple


class Shown(NamedTuple):
    path: str
    """A path, or a pattern of paths."""
    why: str


SYSTEM = (
    Shown("/usr", "programs and libraries"),
    Shown("/bin", "programs"),
    Shown("/sbin", "programs"),
    Shown("/lib", "libraries"),
    Shown("/lib32", "libraries"),
    Shown("/lib64", "libraries, and the loader of every program"),
    Shown("/etc/alternatives", "which of several programs a name such as java or awk means"),
    Shown("/etc/ld.so.cache", "where libraries are"),
    Shown("/etc/ld.so.conf", "where libraries are, for ldconfig and Python's ctypes"),
    Shown("/etc/ld.so.conf.d", "where libraries are, for ldconfig and Python's ctypes"),
    Shown("/etc/localtime", "the time zone"),
    Shown("/etc/timezone", "the time zone's name"),
    Shown("/etc/locale.alias", "names of locales"),
    Shown("/etc/os-release", "the distribution, which build scripts and installers ask for"),
    Shown("/etc/debian_version", "the distribution"),
    Shown("/etc/nsswitch.conf", "how names are resolved, for programs that do not fall back to the default"),
    Shown("/etc/protocols", "names of network protocols"),
    Shown("/etc/services", "names of network services"),
    Shown("/etc/host.conf", "how names are resolved"),
    Shown("/etc/gai.conf", "how addresses are sorted"),
    Shown("/etc/mime.types", "types of files by their ending"),
    Shown("/etc/magic", "types of files by their content"),
    Shown("/etc/terminfo", "terminals"),
    Shown("/etc/ssl/openssl.cnf", "OpenSSL's settings, without which its commands end with an error"),
    Shown("/etc/ssl/certs", "certificate authorities, which programs load also without a network"),
    Shown("/etc/ca-certificates", "certificate authorities"),
    Shown("/etc/ca-certificates.conf", "certificate authorities"),
    Shown("/etc/pki/tls/certs", "certificate authorities"),
    Shown("/etc/pki/ca-trust/extracted", "certificate authorities"),
    Shown("/etc/crypto-policies", "which ciphers are allowed"),
    Shown("/etc/fonts", "fontconfig, for every program that draws text"),
    Shown("/var/cache/fontconfig", "fontconfig's cache: without it every job reads all fonts first"),
    Shown("/etc/R", "R does not start without it"),
    Shown("/etc/java-*-openjdk", "Java does not start without it"),
    Shown("/etc/perl", "Perl's settings and local libraries"),
    Shown("/etc/python3*", "Python's settings, for programs of the distribution"),
    Shown("/etc/php", "PHP's settings and extensions"),
    Shown("/etc/ImageMagick-*", "ImageMagick's limits and coders"),
    Shown("/etc/groff", "manual pages"),
    Shown("/etc/xml", "XML catalogues"),
    Shown("/etc/sgml", "SGML catalogues"),
    Shown("/etc/texmf", "TeX's settings"),
    Shown("/var/lib/texmf", "TeX's formats"),
    Shown("/etc/ghostscript", "fonts of Ghostscript"),
    Shown("/etc/octave.conf", "Octave's settings"),
    Shown("/etc/OpenCL", "OpenCL's drivers"),
    Shown("/etc/vulkan", "Vulkan's drivers"),
    Shown("/etc/glvnd", "OpenGL's drivers"),
    Shown("/etc/openmpi", "MPI's settings"),
    Shown("/etc/papersize", "the default size of paper, for R, TeX and Ghostscript"),
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
            elif os.path.exists(path):
                words += ["--ro-bind", path, path]
    return words
