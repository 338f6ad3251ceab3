"""Lines of docker and podman that name a failure, and the way out."""

from __future__ import annotations

from backends.base import FailurePattern

CONTAINER_FAILURES = (
    FailurePattern(
        "out_of_memory_host",
        r"^dyno: the container was ended by the kernel: out of memory",
        "Give the container more memory (`container: args`, --memory), or take a smaller model or KV cache.",
    ),
    FailurePattern(
        "container_name_taken",
        r"The container name .* is already in use",
        "Leave the name to dyno, or remove that container (`docker rm`).",
    ),
    FailurePattern(
        "container_image_missing",
        r"Unable to find image .* locally|No such image|pull access denied|manifest (?:unknown|for .* not found)",
        "Fetch it beforehand: `docker pull IMAGE` (NVIDIA's registry may want a `docker login`).",
    ),
    FailurePattern(
        "container_runtime_gone",
        r"Cannot connect to the Docker daemon|error during connect|Cannot connect to Podman|is the docker daemon running",
        "Start the runtime (`systemctl start docker`), or see why it ended (`journalctl -u docker`).",
    ),
    FailurePattern(
        "container_runtime_gone",
        r"permission denied while trying to connect to the Docker daemon",
        "This user may not use it: join the group `docker`, or use podman (`container: runtime=podman`).",
    ),
    FailurePattern(
        "no_device",
        r"could not select device driver|nvidia-container-cli: .*(?:error|unknown device)|unresolvable CDI devices",
        "The runtime cannot give it that GPU: install the NVIDIA container toolkit, and check `nvidia-smi -L` for the UUID.",
    ),
    FailurePattern(
        "port_in_use",
        r"port is already allocated|bind: address already in use",
        "Choose another port, or leave it out so that a free one is taken.",
    ),
)
