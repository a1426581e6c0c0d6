"""The log of a running agent in JSON: all of it, from the start to the end."""

from __future__ import annotations

import json

from bpfsvc.devtools.lab.patience import wait
from tests.lab.testbed import WEB, built_testbed, objects

KEYS = {"ts", "level", "logger", "caller", "msg"}


def test_every_line_of_an_agent_is_an_object_with_the_same_keys() -> None:
    """Through a start, changes, objects that cannot be used, a page that fails, and the end."""
    with built_testbed(layout="routed", nodes=1) as testbed:
        testbed.cluster.put("services", *objects(WEB, testbed.lab.pods))
        testbed.cluster.start(testbed.node, options=["--logging-format=json", "--v=6"])
        agent = testbed.agent
        testbed.cluster.put("services", *objects(WEB, testbed.lab.pods[:1]))
        testbed.cluster.put_text("broken.yaml", "kind: Service\nmetadata: [\n")
        agent.expect("the last good state stays in force")
        wait(lambda: "endpoint" in agent.log, "the change in the log", 10)
        assert agent.end() == 0
        lines = [json.loads(line) for line in agent.log.splitlines()]
    for fields in lines:
        assert KEYS <= fields.keys() <= KEYS | {"service", "hint"}, fields
    of_service = [fields for fields in lines if "service" in fields]
    assert {fields["service"] for fields in of_service} == {f"default/{WEB.name}"}
    assert len(of_service) >= 2  # it came, and lost an endpoint
