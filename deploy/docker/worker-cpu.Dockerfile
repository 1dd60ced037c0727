# A worker on CPUs, with kernels for AVX2 to AVX512_BF16; the best set that a machine has is chosen at the start.
#
#     docker build -f deploy/docker/worker-cpu.Dockerfile --build-arg TORCH_INDEX=... -t pypto-serving/worker-cpu .
ARG BASE=python:3.13-slim-bookworm
# PyTorch's index for CPUs. Empty: the one that pip asks by itself, whose build for CUDA has several GB.
ARG TORCH_INDEX=
ARG LEVELS="avx512_bf16 avx512 avx2"

FROM ${BASE} AS build
ARG TORCH_INDEX
ARG LEVELS
RUN apt-get update -qq && apt-get install -yqq --no-install-recommends g++
COPY . /source
WORKDIR /source
RUN python3 -m venv /opt/pypto-serving \
 && /opt/pypto-serving/bin/pip install --no-cache-dir --quiet --constraint constraints.txt ${TORCH_INDEX:+--index-url "${TORCH_INDEX}"} torch \
 && /opt/pypto-serving/bin/pip install --no-cache-dir --quiet --constraint constraints.txt build hatchling grpcio-tools mypy-protobuf numpy
# Kernels are compiled for the torch beside them.
RUN PYPTO_WHEEL_LEVELS="${LEVELS}" /opt/pypto-serving/bin/python -m build --wheel --no-isolation --outdir /wheels . \
 && /opt/pypto-serving/bin/pip install --no-cache-dir --quiet --constraint constraints.txt "$(echo /wheels/*.whl)[worker]" \
 && /opt/pypto-serving/bin/pip uninstall --quiet --yes build hatchling grpcio-tools mypy-protobuf

FROM ${BASE}
RUN apt-get update -qq && apt-get install -yqq --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/pypto-serving /opt/pypto-serving
ENV PATH=/opt/pypto-serving/bin:$PATH
# Control planes, metrics.
EXPOSE 50061 9401
USER 10001:10001
ENTRYPOINT ["pypto-serving-worker", "--device", "cpu"]
