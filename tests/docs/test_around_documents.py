"""What stands around the project: its pages name files that exist, and its scripts and manifests start our programs."""

import re
import shlex
import subprocess
from configparser import ConfigParser
from importlib.util import find_spec

import pytest
import yaml

import pipelined
from apps.gpt2.config import parse as gpt2
from apps.swarm.__main__ import parse as swarm
from tests.launching import ROOT

DEPLOY = ROOT / "docs" / "deploy"
SCRIPTS = sorted(DEPLOY.glob("*.sbatch"))
PAGES = [ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "docs" / "comparison.md", DEPLOY / "README.md"]
FILES = [*PAGES, *SCRIPTS, DEPLOY / "Dockerfile", DEPLOY / "swarm.yaml", ROOT / ".github" / "workflows" / "ci.yml"]
PARSERS = {"gpt2": gpt2, "swarm": swarm}
COMPARED = re.findall(
    r"^\| ([^|]+) \| ((?:yes|part|no)\b[^|]*) \|", (ROOT / "docs" / "comparison.md").read_text(), re.M
)


def named(path):
    return path.name


@pytest.mark.parametrize("file", FILES, ids=named)
def test_every_file_and_module_that_is_named_exists(file):
    text = file.read_text()
    for path in re.findall(r"(?<![\w./-])(?:(?:tests|docs|benchmarks|examples)/|\.ci/)[\w./-]*\w", text):
        assert (ROOT / path).exists() or path == "docs/reference", path
    for module in re.findall(r"python -m ([\w.]+)", text):
        assert find_spec(module), module


@pytest.mark.parametrize("file", FILES, ids=named)
def test_no_file_is_longer_than_120_lines(file):
    assert file.read_text().count("\n") <= 120


def understood(program, words):
    """The flags of one of our programs; what a shell would put in the place of a variable is an address."""
    return PARSERS[program]([re.sub(r"\$\w+", "tcp://10.0.0.1:4700", word) for word in words])


@pytest.mark.parametrize("file", FILES, ids=named)
def test_every_command_that_is_shown_is_understood(file):
    for program, flags in re.findall(r"-m pipelined\.apps\.(\w+)([^`\n&#]*)", file.read_text()):
        if flags.strip(" …"):
            understood(program, [word for word in shlex.split(flags) if word != "$@"])


@pytest.mark.parametrize("script", SCRIPTS, ids=named)
def test_bash_reads_every_script(script):
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_image_copies_what_there_is_and_all_four_packages():
    copied = re.findall(r"^COPY (.+) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    sources = {path for line in copied for path in line.split()}
    assert all((ROOT / path).exists() for path in sources)
    assert {"transports", "collectives", "pipelined", "apps", "setup.cfg", "pyproject.toml", "README.md"} <= sources


@pytest.fixture(scope="module")
def manifest():
    """The objects of the swarm on Kubernetes, by kind and name."""
    objects = yaml.safe_load_all((DEPLOY / "swarm.yaml").read_text())
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


def pods(manifest):
    """The pod templates, each with its object's specification."""
    specs = [each["spec"] for each in manifest.values() if "template" in each["spec"]]
    return [(spec["template"], spec) for spec in specs]


def test_every_selector_of_the_manifest_finds_its_pods(manifest):
    labels = [template["metadata"]["labels"] for template, _ in pods(manifest)]
    for spec in (each["spec"] for each in manifest.values()):
        selector = spec.get("selector") or spec.get("podSelector") or {}
        wanted = selector.get("matchLabels", selector)
        assert any(wanted.items() <= one.items() for one in labels), wanted
    for template, spec in pods(manifest):
        if "selector" in spec:
            assert spec["selector"]["matchLabels"] == template["metadata"]["labels"]


def test_every_volume_that_a_pod_mounts_is_claimed(manifest):
    for template, spec in pods(manifest):
        claimed = {claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])}
        mounted = {m["name"] for each in template["spec"]["containers"] for m in each.get("volumeMounts", [])}
        assert mounted == claimed


def test_the_manifest_starts_peers_and_a_trainer_with_one_key_at_one_etcd(manifest):
    port = manifest["Service", "etcd"]["spec"]["ports"][0]["port"]
    flags, keys = [], []
    for template, _ in pods(manifest):
        (container,) = template["spec"]["containers"]
        if container["image"] == "pipelined":
            assert container["command"][:3] == ["python", "-m", "pipelined.apps.swarm"]
            flags.append(swarm([*container["command"][3:], *container["args"]]))
            keys.append(container["env"])
            assert template["spec"].get("terminationGracePeriodSeconds", 30) > getattr(flags[-1], "grace", 0) + 10
    assert [type(one).__name__ for one in flags] == ["Serve", "Train"]
    assert {one.address.directory for one in flags} == {f"etcd://etcd:{port}"}
    assert keys[0] == keys[1] and keys[0][0]["name"] == "PIPELINED_KEY"
    assert manifest["StatefulSet", "peers"]["spec"]["replicas"] >= flags[1].settings.stages


def test_the_workflow_runs_what_runs_here_and_names_no_registry():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    (job,) = yaml.safe_load(text)["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"} and (ROOT / ".ci" / "run").exists()
    assert not re.search(r"\b\w+\.(?:io|com|org|dev)\b|index-url", text)


def test_the_citation_is_of_this_version():
    cited, told = yaml.safe_load((ROOT / "CITATION.cff").read_text()), ConfigParser(comment_prefixes="#")
    told.read(ROOT / "setup.cfg")
    assert (cited["version"], cited["license"]) == (pipelined.__version__, told["metadata"]["license"])


@pytest.mark.parametrize(("expectation", "answer"), COMPARED, ids=[name for name, _ in COMPARED])
def test_every_yes_of_the_comparison_shows_it_and_every_no_has_a_reason(expectation, answer):
    word, _, rest = answer.partition(": ")
    assert word in ("yes", "part", "no") and rest, answer
    assert word != "yes" or re.search(r"\]\(|`python |`mpirun ", rest), answer


def test_the_comparison_answers_every_row():
    rows = re.findall(r"^\| (?!expectation)[^-]", (ROOT / "docs" / "comparison.md").read_text(), re.MULTILINE)
    assert len(rows) == len(COMPARED) > 40
