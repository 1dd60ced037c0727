# A worker on Ascend NPUs, on a base image that has CANN 8.5.0 and pto-isa (docs/npu.md). Its driver comes from the host, with the device.
#
#     docker build -f deploy/docker/worker-npu.Dockerfile --build-arg BASE=... -t pypto-serving/worker-npu .
#
# PyPTO is under the CANN Open Software License: for software for Ascend processors only; see docs/kernels.md.
# On x86-64 torch-npu wants PyTorch's CPU build: a package index that has it.
ARG TORCH_INDEX=
ARG BASE=ascendai/cann:8.5.0-910b-ubuntu22.04-py3.11
FROM ${BASE}
ARG TORCH_INDEX
COPY . /source
WORKDIR /source
RUN python3 -m venv /opt/pypto-serving \
 && { cat constraints-npu.txt; grep -v '^torch' constraints.txt; } > /tmp/constraints.txt \
 && /opt/pypto-serving/bin/pip install --no-cache-dir --quiet build \
 && /opt/pypto-serving/bin/python -m build --wheel --outdir /wheels . \
 && /opt/pypto-serving/bin/pip install --no-cache-dir --quiet --constraint /tmp/constraints.txt ${TORCH_INDEX:+--extra-index-url "${TORCH_INDEX}"} "$(echo /wheels/*.whl)[npu]" \
 && /opt/pypto-serving/bin/pip uninstall --quiet --yes build \
 && rm -r /source /wheels /tmp/constraints.txt
WORKDIR /
ENV PATH=/opt/pypto-serving/bin:$PATH
# Control planes, metrics.
EXPOSE 50061 9401
# The environment of CANN is a script, which goes before the worker.
ENTRYPOINT ["/bin/bash", "-c", "source /usr/local/Ascend/ascend-toolkit/set_env.sh && exec pypto-serving-worker --device npu \"$@\"", "worker"]
