"""The service as a Ray Serve application: many replicas, more of them when more streams are open.

    pip install "hf_dualpath[ray]"
    python scripts/serve_ray.py --model DIR --replicas 2 --max-replicas 16        # this machine
    serve build serve_ray:application --app-dir scripts -o serve.yaml && serve deploy serve.yaml    # a cluster

Each replica is a whole service with a process of its own for each model. A WebSocket stays with its replica. When a
replica dies its clients connect again, to another one, and begin their unfinished sentence again there (see
`hf_dualpath.client`); finished sentences are not repeated. A room lives in one replica: run rooms with one replica, or
behind a router that sends `/rooms/NAME` and `/v1/rooms/NAME` to one of several such applications by NAME.
"""

import argparse
import os
import time


os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to anyone

from ray import serve  # noqa: E402

from hf_dualpath.apps.examples import DEFAULT_MODEL  # noqa: E402
from hf_dualpath.apps.service.access import Access  # noqa: E402
from hf_dualpath.apps.service.app import create_app  # noqa: E402
from hf_dualpath.apps.service.limits import Limits  # noqa: E402
from hf_dualpath.apps.service.service import Service  # noqa: E402


def application(arguments: dict | None = None) -> serve.Application:
    """Built from `model` (several with commas), `replicas`, `max_replicas`, `streams` (of a replica) and `cpus`."""
    given = {"model": str(DEFAULT_MODEL), "replicas": 1, "max_replicas": 1, "streams": 200, "cpus": 1} | (
        arguments or {}
    )
    streams = int(given["streams"])

    def build():
        """Runs in each replica. Its lifespan starts the models and, at the end, finishes sentences."""
        service = Service(given["model"].split(","), Limits(streams=streams))
        # The proxy of the cluster has a name of its own: origins are checked against it, not against this machine's.
        return create_app(service, Access(os.environ.get("DUALPATH_TOKEN") or None, local_only=False))

    @serve.deployment(
        name="dualpath",
        max_ongoing_requests=2 * streams,  # an open stream is an ongoing request
        autoscaling_config={
            "min_replicas": int(given["replicas"]),
            "max_replicas": max(int(given["max_replicas"]), int(given["replicas"])),
            "target_ongoing_requests": streams * 0.7,
            "downscale_delay_s": 300,
        },
        graceful_shutdown_timeout_s=30,
        health_check_period_s=5,
        ray_actor_options={"num_cpus": float(given["cpus"])},
    )
    @serve.ingress(build)
    class DualPath:
        pass

    return DualPath.bind()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=[str(DEFAULT_MODEL)], help="checkpoints")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--max-replicas", type=int, default=1)
    parser.add_argument("--streams", type=int, default=200, help="of a replica; from 70 percent on another one starts")
    parser.add_argument("--cpus", type=float, default=1, help="of a replica")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = vars(parser.parse_args())
    serve.start(http_options={"host": options.pop("host"), "port": options.pop("port")})
    serve.run(application(options | {"model": ",".join(options["model"])}))
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
