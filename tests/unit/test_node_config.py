"""Which setting of a node counts."""

from pathlib import Path

import pytest

from holdfast.errors import Misconfigured
from holdfast.node.config import SETTINGS, load_config

UUID = "123e4567-e89b-12d3-a456-426614174000"


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.spec("N3")
def test_flags_win_over_environment_and_environment_over_file(tmp_path: Path) -> None:
    file = written(tmp_path / "any.toml", 'orchestrator = "file:1"\nname = "file"\nsite = "file"\nport = 7001\n')
    environ = {"ORCHESTRATOR_ADDRESS": "environment:2", "HOLDFAST_NODE_NAME": "environment"}
    config = load_config({"orchestrator": "flag:3", "name": None}, environ, file)
    assert (config.orchestrator, config.name, config.site, config.port) == ("flag:3", "environment", "file", 7001)
    assert config.origins["orchestrator"] == "--orchestrator"
    assert config.origins["name"] == "HOLDFAST_NODE_NAME"
    assert config.origins["site"] == str(file)


@pytest.mark.spec("N3")
def test_the_named_variables_are_read(tmp_path: Path) -> None:
    config = load_config(
        {},
        {
            "PNODE_UUID": UUID.upper(),
            "ORCHESTRATOR_ADDRESS": "[::1]:4000",
            "PNODE_PORT": "8123",
            "S3_BUCKET": "my-bucket",
            "HOLDFAST_NODE_HOME": str(tmp_path),
            "HOLDFAST_NODE_SITE": "",
        },
    )
    assert config.uuid == UUID
    assert config.orchestrator == "[::1]:4000"
    assert (config.port, config.s3_bucket, config.home) == (8123, "my-bucket", tmp_path)
    assert "site" not in config.origins, "an empty variable counts as not set"


@pytest.mark.spec("N3")
def test_the_file_of_the_home_is_read_where_none_is_named(tmp_path: Path) -> None:
    written(tmp_path / "node.toml", 'orchestrator = "kept:9"\ncpu_milli = 500\nunsafe_process_runtime = true\n')
    config = load_config({"home": str(tmp_path)}, {})
    assert (config.orchestrator, config.cpu_milli, config.unsafe_process_runtime) == ("kept:9", 500, True)
    other = written(tmp_path / "other.toml", 'orchestrator = "other:1"\n')
    assert load_config({}, {"HOLDFAST_CONFIG": str(other)}).orchestrator == "other:1"


@pytest.mark.spec("N3")
@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_every_setting_refuses_nonsense_and_says_where_it_came_from(name: str) -> None:
    environ = {"ORCHESTRATOR_ADDRESS": "a:1", SETTINGS[name].variable: "\0 no \x1b"}
    with pytest.raises(Misconfigured) as wrong:
        load_config({}, environ)
    assert wrong.value.code == "bad_setting"
    assert SETTINGS[name].variable in wrong.value.says and name in wrong.value.says


@pytest.mark.spec("N3")
@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("ORCHESTRATOR_ADDRESS", "no-port"),
        ("ORCHESTRATOR_ADDRESS", "host:70000"),
        ("PNODE_PORT", "-1"),
        ("PNODE_PORT", "65536"),
        ("PNODE_UUID", "not-a-uuid"),
        ("S3_BUCKET", "Capital"),
        ("HOLDFAST_UNSAFE_PROCESS_RUNTIME", "perhaps"),
    ],
)
def test_values_out_of_range_are_refused(variable: str, value: str) -> None:
    with pytest.raises(Misconfigured, match=variable):
        load_config({}, {"ORCHESTRATOR_ADDRESS": "a:1", variable: value})


@pytest.mark.spec("N3")
def test_a_missing_orchestrator_and_a_bad_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured) as missing:
        load_config({"home": str(tmp_path)}, {})
    assert missing.value.code == "missing_setting" and "ORCHESTRATOR_ADDRESS" in missing.value.hint
    unknown = written(tmp_path / "a.toml", 'orchestrater = "a:1"\n')
    with pytest.raises(Misconfigured, match="orchestrater"):
        load_config({}, {}, unknown)
    with pytest.raises(Misconfigured, match="cannot be read"):
        load_config({}, {}, written(tmp_path / "b.toml", "= ="))
    with pytest.raises(Misconfigured, match="cannot be read"):
        load_config({}, {}, tmp_path / "absent.toml")


@pytest.mark.spec("N3")
def test_the_token_is_never_shown() -> None:
    config = load_config({"token": "hf1_secret"}, {"ORCHESTRATOR_ADDRESS": "a:1"})
    assert config.token == "hf1_secret"
    assert "hf1_secret" not in repr(config) and "hf1_secret" not in str(config.origins)


@pytest.mark.spec("N3", "N5")
def test_images_of_the_operator_are_listed_in_a_variable_or_a_file(tmp_path: Path) -> None:
    environ = {"ORCHESTRATOR_ADDRESS": "a:1", "HOLDFAST_NODE_LOCAL_IMAGES": "tool, registry.example/team/tool:v1"}
    assert load_config({}, environ).local_images == ("tool", "registry.example/team/tool:v1")
    file = written(tmp_path / "any.toml", 'orchestrator = "a:1"\nlocal_images = ["*"]\n')
    assert load_config({}, {}, file).local_images == ("*",)
    assert load_config({}, {"ORCHESTRATOR_ADDRESS": "a:1"}).local_images == ()
    for bad in ("a,,b", "a b", "-a", "a*"):
        with pytest.raises(Misconfigured, match="names of images"):
            load_config({}, environ | {"HOLDFAST_NODE_LOCAL_IMAGES": bad})


@pytest.mark.spec("N3", "N5")
def test_hosts_of_packages_are_listed_in_a_variable_or_a_file(tmp_path: Path) -> None:
    environ = {"ORCHESTRATOR_ADDRESS": "a:1", "HOLDFAST_NODE_INDEX_HOSTS": "Files.example, b.example:8443"}
    assert load_config({}, environ).index_hosts == (("files.example", 443), ("b.example", 8443))
    file = written(tmp_path / "any.toml", 'orchestrator = "a:1"\nindex_hosts = ["c.example"]\n')
    assert load_config({}, {}, file).index_hosts == (("c.example", 443),)
    for bad in ("a.example/x", "a:0", "a:65536", "http://a.example", "a,,b", "-a"):
        with pytest.raises(Misconfigured):
            load_config({}, environ | {"HOLDFAST_NODE_INDEX_HOSTS": bad})
