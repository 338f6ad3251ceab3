"""Containers: the command line of `run`, and each way their life can go wrong, against a docker that behaves like one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from backends import container
from backends.base import EngineSettings, InContainer, LaunchContext, LaunchPlan
from backends.container import OWNER, find_image, gpu_words, mounts_of, sweep, time_zone, wrap
from backends.container_process import SESSION, ContainerProcess, cgroup_pids
from backends.container_spec import ContainerSpec
from backends.failures import LeftBehindError, ServerDiedError, StartupError, classify
from backends.ports import free_port, port_is_free
from backends.vllm import BACKEND as VLLM
from harness.cli.values import engine_fields
from harness.conformance import Outcome, check_backend
from harness.experiment import EngineSpec, Timeouts
from harness.models import open_folder
from harness.open_server import open_server
from results.errors import EngineError, UsageError
from tests.backends.conftest import FAKE
from tests.servers.docker_fake import FakeDocker
from tests.servers.trtllm_fake import FAULTS, install
from tests.waiting import LONG_S, wait_until

IMAGE = "engine:1.0"
COMMAND = (sys.executable, str(FAKE))


@pytest.fixture
def docker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDocker]:
    with FakeDocker(tmp_path / "docker", {IMAGE, "registry.example/nvidia/tensorrt-llm/release:1.2.1"}) as fake:
        monkeypatch.setenv("PATH", f"{fake.path}:{os.environ['PATH']}")
        yield fake


class Started:
    """Starts the fake engine in a container, and holds that nothing is left of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self.spec = ContainerSpec(image=IMAGE, gpus="none", mounts=(f"{FAKE.parent}:{FAKE.parent}:ro",))

    def start(self, *flags: str, grace_s: float = LONG_S, env: dict[str, str] | None = None) -> ContainerProcess:
        self.folder.mkdir(exist_ok=True)
        plan = LaunchPlan((*COMMAND, "--port", str(self.port), *flags), env or {})
        made, box = wrap(plan, self.spec, InContainer(COMMAND), [], self.folder, self.port)
        process = ContainerProcess.start(made, self.folder / "server.log", grace_s, port=self.port)
        process.box = box
        return process

    def ready(self, process: ContainerProcess) -> None:
        process.wait_ready(f"http://127.0.0.1:{self.port}", timeout_s=LONG_S)


@pytest.fixture
def started(tmp_path: Path) -> Started:
    return Started(tmp_path / "session")


def nothing_left(docker: FakeDocker, started: Started) -> None:
    wait_until(lambda: not docker.containers, "every container removed")
    wait_until(lambda: port_is_free("127.0.0.1", started.port), "the port free")


def test_the_run_command_says_everything_and_no_secret(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    spec = ContainerSpec(
        image="vllm/vllm-openai:v0.11.0", gpus="GPU-1,GPU-2", args=("--memory", "64g"), mounts=("/a:/b:ro",)
    )
    plan = LaunchPlan(("vllm", "serve", str(model), "--port", "8123"), {"HF_TOKEN": "hf_secret", "A": "b"})
    made, box = wrap(plan, spec, InContainer(("vllm", "serve"), True), [model], tmp_path / "s", 8123, "x@sha256:1")
    words = list(made.argv)
    assert words[:2] == ["docker", "run"]
    for pair in (
        ("--name", f"dyno-{box.session}"),
        ("--pull", "never"),
        ("--ipc", "host"),
        ("--network", "host"),
        ("--cidfile", str(tmp_path / "s" / "container.id")),
        ("--label", f"{SESSION}={box.session}"),
        ("--gpus", '"device=GPU-1,GPU-2"'),
        ("--volume", f"{model}:{model}:ro"),
        ("--volume", f"{tmp_path / 's'}:{tmp_path / 's'}"),
        ("--volume", "/a:/b:ro"),
        ("--env", "HF_TOKEN"),
        ("--entrypoint", "vllm"),
        ("--memory", "64g"),
    ):
        assert any(pair == (words[i], words[i + 1]) for i in range(len(words) - 1)), pair
    assert "--init" in words
    assert words[words.index("vllm/vllm-openai:v0.11.0") :] == [spec.image, "serve", str(model), "--port", "8123"]
    assert "hf_secret" not in " ".join(words)
    assert made.env.items() >= plan.env.items()  # the runtime takes the values from its own environment
    assert box.label in made.after


@pytest.mark.parametrize("offset_s", [0, 7200, -12_600, 20_700])
def test_a_container_shows_the_time_of_this_machine(offset_s: int) -> None:
    words = [sys.executable, "-c", "import time; print(time.localtime().tm_gmtoff)"]
    told = subprocess.run(words, env={"TZ": time_zone(offset_s)}, capture_output=True, text=True, check=True)
    assert int(told.stdout) == offset_s


def test_an_entry_point_is_kept_replaced_or_named(tmp_path: Path) -> None:
    plan = LaunchPlan(("trtllm-serve", "m"), {})

    def words(spec: ContainerSpec, replaces: bool) -> list[str]:
        made, _ = wrap(plan, spec, InContainer(("trtllm-serve",), replaces), [], tmp_path, 1)
        at = made.argv.index(IMAGE)
        entry = made.argv[made.argv.index("--entrypoint") + 1] if "--entrypoint" in made.argv else ""
        return [entry, *made.argv[at + 1 :]]

    assert words(ContainerSpec(image=IMAGE), False) == ["", "trtllm-serve", "m"]
    assert words(ContainerSpec(image=IMAGE), True) == ["trtllm-serve", "m"]
    assert words(ContainerSpec(image=IMAGE, entrypoint="/bin/env"), True) == ["/bin/env", "trtllm-serve", "m"]


def test_a_bridge_publishes_the_port_on_the_loopback_alone(tmp_path: Path) -> None:
    made, _ = wrap(
        LaunchPlan(("x",)), ContainerSpec(image=IMAGE, network="bridge"), InContainer(("x",)), [], tmp_path, 8123
    )
    assert "127.0.0.1:8123:8123" in made.argv
    assert "host" not in made.argv[made.argv.index("--publish") :]


def test_a_model_of_links_brings_the_folders_they_lead_to(tmp_path: Path) -> None:
    blobs, model = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    model.mkdir(parents=True)
    (blobs / "abc").write_text("weights")
    (model / "model.safetensors").symlink_to(blobs / "abc")
    (model / "broken").symlink_to(blobs / "none")
    assert mounts_of([model]) == [f"{blobs}:{blobs}:ro", f"{model}:{model}:ro"]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"gpus": "none"}, []),
        ({"gpus": "all"}, ["--gpus", "all"]),
        ({"gpus": "GPU-1"}, ["--gpus", "device=GPU-1"]),
        ({"gpus": "1"}, ["--gpus", "device=GPU-b"]),
        ({"gpus": "all", "runtime": "podman"}, ["--device", "nvidia.com/gpu=all"]),
        (
            {"gpus": "0,1", "runtime": "podman"},
            ["--device", "nvidia.com/gpu=GPU-a", "--device", "nvidia.com/gpu=GPU-b"],
        ),
    ],
)
def test_gpus_are_given_by_uuid(spec: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "nvml_uuids", lambda: {"0": "GPU-a", "1": "GPU-b"})
    assert gpu_words(ContainerSpec(image=IMAGE, **spec)) == words


@pytest.mark.parametrize(
    "wrong", [{"image": "--rm"}, {"image": ""}, {"image": "x", "mounts": ["a"]}, {"image": "x", "n": 1}]
)
def test_a_container_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ContainerSpec(**wrong)


def test_a_backend_without_an_image_of_its_own_needs_a_command() -> None:
    from backends.reference_adapter import BACKEND

    with pytest.raises(UsageError, match="name its `command`"):
        container.inner_command(BACKEND, ContainerSpec(image=IMAGE), None)
    assert container.inner_command(VLLM, ContainerSpec(image=IMAGE), None) == InContainer(("vllm", "serve"), True)


@pytest.mark.parametrize("runtime", ["docker", "podman"])
def test_it_runs_is_ready_and_leaves_nothing(docker: FakeDocker, started: Started, runtime: str) -> None:
    started.spec = started.spec.model_copy(update={"runtime": runtime})
    with started.start(env={"SECRET": "x"}) as process:
        started.ready(process)
        (box,) = docker.containers.values()
        assert box.process is not None
        assert process.pid == box.process.pid
        assert box.process.pid in process.pids()
        assert box.labels[OWNER].split(":")[0] == str(os.getpid())
    assert "got SIGTERM" in (started.folder / "server.log").read_text()
    assert process.exit_code == 0
    nothing_left(docker, started)


def test_one_that_does_not_hear_sigterm_is_removed_by_force(docker: FakeDocker, started: Started) -> None:
    process = started.start("--ignore-term", grace_s=0.3)
    started.ready(process)
    process.stop()
    nothing_left(docker, started)


def test_an_image_that_is_not_there_is_told_before_anything_starts(docker: FakeDocker) -> None:
    with pytest.raises(EngineError, match=r"docker pull other:2\.0"):
        find_image(ContainerSpec(image="other:2.0"))
    assert find_image(ContainerSpec(image=IMAGE)) == "engine@sha256:abcd"


def test_without_a_runtime_or_its_daemon_that_is_said(
    docker: FakeDocker, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "TRIES_S", 1.0)
    docker.vanish()
    with pytest.raises(EngineError, match="Cannot connect to the Docker daemon"):
        find_image(started.spec)
    with pytest.raises(StartupError) as caught:
        started.ready(started.start())
    assert caught.value.failure.failure == "container_runtime_gone"
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(EngineError, match="there is no 'docker' on PATH"):
        find_image(started.spec)


def test_a_name_that_is_taken_is_told_and_its_owner_left_alone(
    docker: FakeDocker, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backends.container.secrets.token_hex", lambda n: "taken")
    other = docker.add("dyno-taken", {})
    process = started.start()
    with process, pytest.raises(StartupError) as caught:
        started.ready(process)
    assert caught.value.failure.failure == "container_name_taken"
    assert list(docker.containers.values()) == [other]
    assert other.running


def test_one_that_the_kernel_ended_for_its_memory_is_told_so(docker: FakeDocker, started: Started) -> None:
    process = started.start()
    with process:
        started.ready(process)
        (box,) = docker.containers.values()
        docker.kill_for_memory(box)
        wait_until(lambda: not process.alive(), "the end seen")
        with pytest.raises(ServerDiedError) as caught:
            process.check()
    assert caught.value.failure.failure == "out_of_memory_host"
    assert caught.value.failure.is_out_of_memory
    nothing_left(docker, started)


def test_a_daemon_that_goes_away_in_use_is_no_clean_end(
    docker: FakeDocker, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "TRIES_S", 1.0)
    process = started.start(grace_s=0.3)
    started.ready(process)
    (box,) = docker.containers.values()
    docker.vanish()
    with pytest.raises(LeftBehindError, match="Whether the container is gone is not known"):
        process.stop()
    assert box.running  # nobody could end it, and it is said so


def test_a_harness_that_is_killed_leaves_no_container(docker: FakeDocker, started: Started) -> None:
    started.folder.mkdir()
    script = Path(__file__).with_name("container_script.py")
    words = [sys.executable, str(script), str(started.folder), str(started.port), sys.executable, "-c"]
    # Not mounted, so it is told as code.
    words.append(f"import sys; sys.argv=['x',*sys.argv[1:]]; exec(compile(open({str(FAKE)!r}).read(), 'x', 'exec'))")
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as harness:
        assert harness.stdout is not None
        told = json.loads(harness.stdout.readline())
        assert len(docker.containers) == 1
        harness.kill()
    nothing_left(docker, started)
    assert not psutil.pid_exists(told["first"])


def test_a_keeper_that_is_killed_is_stood_in_for(docker: FakeDocker, started: Started) -> None:
    process = started.start()
    started.ready(process)
    os.kill(process._link.pid, signal.SIGKILL)
    wait_until(lambda: not process.alive(), "the keeper's end seen")
    process.stop()
    nothing_left(docker, started)


def test_what_dead_harnesses_left_is_swept_away_and_nothing_else(docker: FakeDocker) -> None:
    me, boot = psutil.Process(), Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    ended = subprocess.Popen(["true"])
    ended.wait()
    dead = docker.add("dead", {OWNER: f"{ended.pid}:12345:{boot}"})
    mine = docker.add("mine", {OWNER: container._owner()})
    elsewhere = docker.add("elsewhere", {OWNER: f"{me.pid}:1:another-boot"})
    foreign = docker.add("foreign", {})
    assert sweep("docker") == [dead.id]
    assert set(docker.containers) == {mine.id, elsewhere.id, foreign.id}


def test_pids_come_from_the_cgroup(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    for name, path in (("7", "/docker/abc"), ("8", "/mine"), ("9", "/"), ("self", "/mine")):
        (proc / name).mkdir(parents=True)
        (proc / name / "cgroup").write_text(f"0::{path}\n")
    (root / "docker" / "abc" / "below").mkdir(parents=True)
    (root / "docker" / "abc" / "cgroup.procs").write_text("7\n70\n")
    (root / "docker" / "abc" / "below" / "cgroup.procs").write_text("71\n")
    assert cgroup_pids(7, root, proc) == [7, 70, 71]
    assert cgroup_pids(8, root, proc) == []  # our own: everything would be its
    assert cgroup_pids(9, root, proc) == []
    assert cgroup_pids(10, root, proc) == []


@pytest.mark.parametrize(
    ("line", "failure"),
    [
        ('could not select device driver "" with capabilities: [[gpu]].', "no_device"),
        ("Bind for 127.0.0.1:8000 failed: port is already allocated.", "port_in_use"),
        ("docker: permission denied while trying to connect to the Docker daemon socket", "container_runtime_gone"),
        ("Error: pull access denied for x, repository does not exist", "container_image_missing"),
    ],
)
def test_what_the_runtime_complains_of_is_named(line: str, failure: str) -> None:
    from backends.container_failures import CONTAINER_FAILURES

    assert classify(line, 125, CONTAINER_FAILURES).failure == failure


def test_an_engine_of_an_experiment_runs_in_its_container(docker: FakeDocker, tmp_path: Path, tiny_dir: Path) -> None:
    """The whole way: the adapter's plan, the version from the image's tag, its files, what the session records."""
    script = install(tmp_path / "trt", "1.2.1")
    engine = EngineSpec(
        label="trt",
        backend="tensorrt_llm",
        command=("sh", "-c", f'exec {script} "$@"', "trtllm-serve"),
        settings=EngineSettings(max_model_len=256, max_num_seqs=4),
        container=ContainerSpec(image="registry.example/nvidia/tensorrt-llm/release:1.2.1"),
        env={FAULTS: "idle_s=0.1", "API_TOKEN": "hidden"},
    )
    model = open_folder("tiny", tiny_dir)
    with open_server(engine, model, "tiny", tmp_path / "s", Timeouts(ready_s=LONG_S, stop_s=LONG_S)) as server:
        assert server.settings["max_num_seqs"].value == 4
        assert server.versions == {
            "tensorrt_llm": "1.2.1",
            "container_image": "registry.example/nvidia/tensorrt-llm/release:1.2.1",
            "container_digest": "registry.example/nvidia/tensorrt-llm/release@sha256:abcd",
        }
        assert server.plan is not None
        assert "hidden" not in " ".join(server.plan.argv)
        assert "--max_batch_size" not in server.plan.argv  # the tag told a version whose file is heard
    assert docker.containers == {}


def test_a_backend_that_is_in_the_image_alone_keeps_its_promises(
    docker: FakeDocker, tmp_path: Path, tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its command is not on this machine's PATH, only on the container's."""
    script = install(tmp_path / "trt", "1.2.1")
    docker.image_path = str(script.parent)
    monkeypatch.delenv("DYNO_TENSORRT_LLM_COMMAND", raising=False)
    engine = EngineSpec(
        label="trt",
        backend="tensorrt_llm",
        container=ContainerSpec(image="registry.example/nvidia/tensorrt-llm/release:1.2.1"),
        env={FAULTS: "idle_s=0.1 step_ms=1"},
    )
    results = check_backend(
        engine, open_folder("tiny", tiny_dir), tmp_path / "s", timeouts=Timeouts(ready_s=LONG_S, stop_s=LONG_S)
    )
    assert [r for r in results if r.outcome not in (Outcome.PASS, Outcome.NOT_CLAIMED)] == []
    assert docker.containers == {}


def test_the_command_line_says_a_container_like_the_file() -> None:
    made = engine_fields(
        "backend=vllm,container.image=x:1,container.gpus=GPU-1,container.args=--memory 64g,container.mounts=/a:/b"
    )
    spec = EngineSpec.model_validate(made)
    assert spec.container == ContainerSpec(image="x:1", gpus="GPU-1", args=("--memory", "64g"), mounts=("/a:/b",))


def test_a_secret_among_the_words_of_run_is_in_no_record() -> None:
    spec = EngineSpec(
        label="x", backend="vllm", container=ContainerSpec(image="x:1", args=("--env", "HF_TOKEN=hf_abcdef123"))
    )
    assert "hf_abcdef123" not in spec.public().model_dump_json()
    assert "hf_abcdef123" in spec.secrets()


def test_the_version_of_vllm_is_that_of_the_image(tmp_path: Path) -> None:
    """Nothing on this machine is asked: the command is inside."""

    def flags(image: str) -> tuple[str, ...]:
        context = LaunchContext(
            model=tmp_path,
            served_name="m",
            settings=EngineSettings(cuda_graphs=False),
            session_dir=tmp_path,
            host="127.0.0.1",
            port=1,
            command=("vllm", "serve"),
            image=image,
        )
        return VLLM.launch_plan(context).argv

    assert "--enforce-eager" in flags("vllm/vllm-openai:v0.10.2")
    assert "--compilation-config" in flags("vllm/vllm-openai:v0.11.0")
    assert flags("vllm/vllm-openai:v0.11.0")[:3] == ("vllm", "serve", str(tmp_path))
