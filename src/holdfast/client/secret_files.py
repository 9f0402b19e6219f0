"""Recognises files that probably hold secrets, by name and by content, so that no folder takes them to strangers'
machines by accident.

Names are for files whose content has no shape of its own. Content is searched for private keys and for tokens of
well-known services, which have a shape that nothing else has. Neither finds every secret: a password in a program's
source looks like any other text.
"""

import re
from typing import NamedTuple

SEARCHED_BYTES = 1 << 20
"""How much of the beginning of a file is searched."""

SECRET_NAMES = (
    ".env", ".env.*", ".envrc", "!.env.example", "!.env.sample", "!.env.template", "!.env.dist", "!.env.defaults",
    ".netrc", "_netrc", ".npmrc", ".yarnrc.yml", ".pypirc", ".gem/credentials", ".cargo/credentials*",
    ".git-credentials", ".config/gh/hosts.yml", ".config/hub",
    ".ssh/", "id_rsa", "id_dsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk", "*.ppk",
    ".gnupg/", ".password-store/", "*.kdbx", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ovpn",
    ".aws/", ".azure/", ".config/gcloud/", ".boto", ".s3cfg", ".oci/", "client_secret*.json", "credentials.json",
    ".kube/", "kubeconfig", ".docker/config.json", ".dockercfg", ".config/containers/auth.json", ".vault-token",
    ".terraformrc", ".terraform.d/", "*.tfstate", "*.tfstate.*",
    ".pgpass", ".my.cnf", ".mylogin.cnf", ".htpasswd", ".databrickscfg", ".snowsql/",
    ".huggingface/token", ".cache/huggingface/token", "kaggle.json", ".streamlit/secrets.toml", ".modal.toml",
    ".config/holdfast/", "admin.token",
)  # fmt: skip
"""Patterns with the syntax of `.gitignore`. One with `!` is an exception: an example holds no secret."""


class SecretShape(NamedTuple):
    what: str
    marker: bytes
    """Occurs in each of them; searched for first, because that is quick."""
    pattern: re.Pattern[bytes]


def _shape(what: str, marker: str, pattern: str) -> SecretShape:
    return SecretShape(what, marker.encode(), re.compile(rb"(?<![A-Za-z0-9_-])(?:" + pattern.encode() + rb")"))


SECRET_SHAPES = (
    SecretShape(
        "private key",
        b"PRIVATE KEY",
        # Followed by what a key looks like: a program that only mentions the line is none. In JSON, \n ends a line.
        re.compile(
            rb"-----BEGIN (?:[A-Z0-9]{1,10} ){0,3}PRIVATE KEY(?: BLOCK)?-----(?:\\[rn]|\s){1,8}"
            rb"(?:[A-Za-z-]{1,40}: [^\r\n]{0,200}\s{1,4}){0,4}[A-Za-z0-9+/]{40}"
        ),
    ),
    _shape("AWS access key", "AKIA", r"AKIA(?![A-Z0-9]{9}EXAMPLE)[A-Z2-7]{16}(?![A-Za-z0-9])"),
    _shape("AWS access key", "ASIA", r"ASIA(?![A-Z0-9]{9}EXAMPLE)[A-Z2-7]{16}(?![A-Za-z0-9])"),
    _shape("GitHub token", "ghp_", r"ghp_[A-Za-z0-9]{36}"),
    _shape("GitHub token", "gho_", r"gho_[A-Za-z0-9]{36}"),
    _shape("GitHub token", "ghs_", r"ghs_[A-Za-z0-9]{36}"),
    _shape("GitHub token", "ghu_", r"ghu_[A-Za-z0-9]{36}"),
    _shape("GitHub token", "github_pat_", r"github_pat_[A-Za-z0-9_]{60}"),
    _shape("GitLab token", "glpat-", r"glpat-[A-Za-z0-9_-]{20}"),
    _shape("Slack token", "xox", r"xox[abeprs]-[A-Za-z0-9-]{20}"),
    _shape("Stripe key", "k_live_", r"[sr]k_live_[A-Za-z0-9]{20}"),
    _shape("Anthropic key", "sk-ant-", r"sk-ant-[A-Za-z0-9_-]{40}"),
    _shape("OpenAI key", "sk-proj-", r"sk-proj-[A-Za-z0-9_-]{40}"),
    _shape("OpenAI key", "sk-svcacct-", r"sk-svcacct-[A-Za-z0-9_-]{40}"),
    _shape("Hugging Face token", "hf_", r"hf_[A-Za-z]{34}(?![A-Za-z0-9_])"),
    _shape("Google API key", "AIza", r"AIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    _shape("npm token", "npm_", r"npm_[A-Za-z0-9]{36}(?![A-Za-z0-9_])"),
    _shape("SendGrid key", "SG.", r"SG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    _shape("DigitalOcean token", "dop_v1_", r"dop_v1_[a-f0-9]{64}"),
    _shape("Holdfast join token", "hf1_", r"hf1_[A-Za-z0-9_-]{60}"),
    _shape("Holdfast access token", "hfr_", r"hfr_[A-Za-z0-9_-]{30}"),
    _shape("Holdfast admin token", "hfa_", r"hfa_[A-Za-z0-9_-]{30}"),
)


def secret_in(data: bytes) -> str:
    """What the data holds, for people; empty: nothing that is known here."""
    return next((one.what for one in SECRET_SHAPES if one.marker in data and one.pattern.search(data)), "")
