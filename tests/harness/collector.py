"""A collector of OpenTelemetry that keeps what it gets."""

import grpc.aio
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """To be used in `async with`."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.services: set[str] = set()

    async def __aenter__(self) -> "Collector":
        self._server = grpc.aio.server()
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        await self._server.start()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self._server.stop(None)

    async def Export(self, request: pb.ExportTraceServiceRequest, context: object) -> pb.ExportTraceServiceResponse:
        """Keep spans."""
        for resource in request.resource_spans:
            self.services |= {each.value.string_value for each in resource.resource.attributes if each.key == "service.name"}
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return pb.ExportTraceServiceResponse()

    def named(self, name: str) -> list[Span]:
        """The spans of a name."""
        return [span for span in self.spans if span.name == name]
