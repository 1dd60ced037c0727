# A control plane, whole (the entry point), or a part of it: pypto-serving-scheduler, pypto-serving-frontend. No torch.
#
#     docker build -f deploy/docker/control-plane.Dockerfile -t pypto-serving/control-plane .
ARG BASE=python:3.13-slim-bookworm
FROM ${BASE} AS build
COPY . /source
WORKDIR /source
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --quiet build \
 && /opt/build/bin/python -m build --wheel --outdir /wheels .
# What tokenizers needs to fetch from a hub, and what numpy needs to test and build itself, is a third of the size.
RUN python3 -m venv /opt/pypto-serving \
 && /opt/pypto-serving/bin/pip install --no-cache-dir --quiet --no-compile --constraint constraints.txt "$(echo /wheels/*.whl)[control-plane]" \
 && /opt/pypto-serving/bin/pip uninstall --quiet --yes huggingface-hub hf-xet httpx \
 && cd /opt/pypto-serving/lib/python3*/site-packages \
 && find numpy -depth -type d -name tests -exec rm -r {} + \
 && find . -depth -type d -name __pycache__ -exec rm -r {} + \
 && rm -rf numpy/_core/lib numpy/_core/include numpy/f2py pip pip-* setuptools* pkg_resources ../../../bin/pip*

FROM ${BASE}
COPY --from=build /opt/pypto-serving /opt/pypto-serving
ENV PATH=/opt/pypto-serving/bin:$PATH PYTHONDONTWRITEBYTECODE=1
# Clients, workers that announce themselves, front ends, metrics.
EXPOSE 50051 50052 50053 9400
USER 10001:10001
ENTRYPOINT ["pypto-serving-control"]
