"""Spans of requests in an OpenTelemetry collector, from both planes."""

from pathlib import Path

from harness.collector import Collector
from harness.service import real_service
from harness.waiting import until

from pypto_serving.inference.v1 import inference_pb2 as pb
from pypto_serving.process.exported_span import open_export

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


async def test_a_trace_goes_from_client_to_worker(byte_model: Path) -> None:
    async with Collector() as collector, real_service(byte_model, "--otlp-endpoint", collector.endpoint) as service:
        export = open_export(collector.endpoint, "worker")
        service.worker.servicer.export_to(export)
        spec = pb.GenerationSpec(text="hello:", request_id="r", stopping=pb.StoppingParams(max_tokens=4, ignore_eos=True))
        await service.stub.Generate(pb.GenerateRequest(spec=spec), metadata=[("traceparent", f"00-{TRACE}-{PARENT}-01")])
        await service.unary("other:", max_tokens=2)  # whose step releases the lane of the first
        await until(lambda: collector.named("request") and collector.named("sequence"))
        export.close()
        assert await service.metric("exported_spans_dropped_total") == 0
        [request] = [span for span in collector.named("request") if span.trace_id.hex() == TRACE]
        [sequence] = collector.named("sequence")
        inside = {span.name for span in collector.spans if span.parent_span_id == request.span_id}
    assert {request.parent_span_id.hex(), sequence.parent_span_id.hex()} == {PARENT} and sequence.trace_id.hex() == TRACE
    assert inside <= {"queue", "prefill", "decode"} and inside
    values = {each.key: each.value for each in request.attributes}
    assert (values["pypto_serving.request_id"].string_value, values["gen_ai.usage.output_tokens"].int_value) == ("r", 4)
