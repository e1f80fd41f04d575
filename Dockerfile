# Sandpen as a server in a container, beside the containers that it makes: docs/docker.md says how to run it. The context
# holds the program alone:
#
#     cargo build --release --package sandpen
#     install -D target/release/sandpen target/image/sandpen
#     docker build --tag sandpen --file Dockerfile target/image
#
# deploy/compose.yaml builds and runs it as a server over HTTP.
#
# Any base will do that has the C library which the program was built for.
ARG BASE=docker.io/library/debian:stable-slim
FROM ${BASE}
COPY sandpen /usr/local/bin/sandpen
ENV SANDPEN_ENGINE=docker SANDPEN_STATE_DIR=/var/lib/sandpen
VOLUME /var/lib/sandpen
EXPOSE 8228
ENTRYPOINT ["/usr/local/bin/sandpen"]
CMD ["mcp"]
