# OpenAI's API over HTTP, in front of control planes.
#
#     docker build -f deploy/docker/gateway.Dockerfile -t pypto-serving/gateway .
ARG BASE=python:3.13-slim-bookworm
FROM ${BASE} AS build
COPY . /source
WORKDIR /source
RUN python3 -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --quiet build \
 && /opt/build/bin/python -m build --wheel --outdir /wheels .
RUN python3 -m venv /opt/pypto-serving \
 && /opt/pypto-serving/bin/pip install --no-cache-dir --quiet --no-compile --constraint constraints.txt "$(echo /wheels/*.whl)[gateway]"

FROM ${BASE}
COPY --from=build /opt/pypto-serving /opt/pypto-serving
ENV PATH=/opt/pypto-serving/bin:$PATH PYTHONDONTWRITEBYTECODE=1
EXPOSE 8000
USER 10001:10001
ENTRYPOINT ["pypto-serving-gateway"]
