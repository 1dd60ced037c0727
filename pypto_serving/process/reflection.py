"""The reflection service, from which tools such as grpcurl learn the API: v1, and v1alpha, which older tools ask for."""

import grpc
import grpc.aio
from google.protobuf import descriptor_pool, text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

_V1 = "grpc.reflection.v1.ServerReflection"

#: Full names of the services that `enable_reflection` adds.
REFLECTION_SERVICES: tuple[str, ...] = (_V1, reflection.SERVICE_NAME)


def enable_reflection(server: grpc.aio.Server, *services: str) -> None:
    """Describe `services`, by their full names, to whoever asks `server`.

    The library has v1alpha alone. Its messages are those of v1 in another package, so one servicer answers under both names.
    """
    _describe_v1()
    servicer = reflection.aio.ReflectionServicer((*services, *REFLECTION_SERVICES))  # type: ignore[attr-defined]  # behind a test that mypy cannot read
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_V1, {"ServerReflectionInfo": method}),))


def _describe_v1() -> None:
    """Let the service of v1 be found by its name, as every service that reflection lists is."""
    pool = descriptor_pool.Default()
    try:
        pool.FindServiceByName(_V1)
    except KeyError:
        file = FileDescriptorProto()
        reflection_pb2.DESCRIPTOR.CopyToProto(file)
        renamed = text_format.Parse(text_format.MessageToString(file).replace("v1alpha", "v1"), FileDescriptorProto())
        pool.AddSerializedFile(renamed.SerializeToString())
