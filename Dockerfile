# `make docker-images` builds every target of this file, and checks them. The tests' own images come from the same static binaries
# by e2e/images/build.sh, which needs no Docker. Keep paths, user and entry point the same in both files.
#
#   docker build -t spillway/spillway:dev .
#   docker build -t spillway/demo-agent:dev --target demo-agent .
#   docker build -t spillway/codex-agent:dev --target codex-agent .
#   docker build -t spillway/model-server:dev --target model-server .
#
# Other base images, for example of a mirror: --build-arg DEBIAN_IMAGE=..., RUST_IMAGE=..., NODE_IMAGE=...
# PROFILE: the profile of Cargo. `quick` builds in half the time.
ARG DEBIAN_IMAGE=debian:bookworm-slim
ARG RUST_IMAGE=rust:1.95-bookworm
ARG NODE_IMAGE=node:20-bookworm-slim

FROM ${RUST_IMAGE} AS builder
ARG PROFILE=release
WORKDIR /src
COPY . .
# Static, so that the last stage needs only the binaries, and the agent's binary runs in any image. --target keeps the flag
# from build scripts and proc macros. One build for both binaries, as in `make build`, compiles shared dependencies once.
RUN target="$(uname -m)-unknown-linux-gnu" && export RUSTFLAGS="-C target-feature=+crt-static" \
 && cargo build --profile "$PROFILE" --locked --target "$target" --package spillway --package spillway-pod --bin spillway --bin spillway-agent \
 && cp "target/$target/$PROFILE/spillway" "target/$target/$PROFILE/spillway-agent" /

FROM ${DEBIAN_IMAGE} AS agent-root
RUN apt-get update && apt-get install -y --no-install-recommends busybox-static && rm -rf /var/lib/apt/lists/*
COPY e2e/images/demo-agent.sh /tmp/demo-agent
RUN mkdir -p /out/bin /out/etc /out/tmp /out/proc /out/sys /out/dev /out/root /out/home/agent \
 && chmod 1777 /out/tmp && chmod 777 /out/home/agent \
 && install -m 755 /bin/busybox /out/bin/busybox \
 && for a in $(/bin/busybox --list); do [ "$a" = busybox ] || ln -s busybox "/out/bin/$a"; done \
 && install -m 755 /tmp/demo-agent /out/bin/demo-agent \
 && printf 'root:x:0:0::/root:/bin/sh\nagent:x:10001:10001::/home/agent:/bin/sh\n' > /out/etc/passwd \
 && printf 'root:x:0:\nagent:x:10001:\n' > /out/etc/group

FROM scratch AS demo-agent
COPY --from=agent-root /out/ /
ENV PATH=/bin HOME=/home/agent
USER 10001:10001
WORKDIR /home/agent
CMD ["/bin/demo-agent"]

# Codex from npm, checked by the digests of the lock file. No script of a package runs.
FROM ${NODE_IMAGE} AS codex
WORKDIR /codex
COPY e2e/images/codex/ ./
RUN npm ci --ignore-scripts --no-audit --no-fund

FROM ${DEBIAN_IMAGE} AS codex-root
RUN apt-get update && apt-get install -y --no-install-recommends busybox-static bash git ca-certificates && rm -rf /var/lib/apt/lists/*
COPY --from=codex /codex/node_modules/@openai /tmp/openai
COPY e2e/images/codex-agent.sh /tmp/codex-agent
RUN mkdir -p /out/bin /out/etc /out/tmp /out/proc /out/sys /out/dev /out/root /out/home/agent /out/workspace \
    /out/usr/bin /out/usr/share/git-core/templates \
 && chmod 1777 /out/tmp && chmod 777 /out/home/agent /out/workspace \
 && install -m 755 /bin/busybox /out/bin/busybox \
 && for a in $(/bin/busybox --list); do [ "$a" = busybox ] || ln -s busybox "/out/bin/$a"; done \
 && install -m 755 /tmp/openai/codex-linux-*/vendor/*-linux-musl/bin/codex* /tmp/openai/codex-linux-*/vendor/*-linux-musl/codex-path/rg /out/bin/ \
 && rm -f /out/bin/bash \
 && programs="/usr/bin/bash /usr/bin/git /usr/lib/git-core/git-remote-http" \
 && for f in $programs $(ldd $programs | grep -oE '/[^ :]+' | sort -u); do [ -e "/out$f" ] || install -D -m 755 "$f" "/out$f"; done \
 && ln -s git-remote-http /out/usr/lib/git-core/git-remote-https \
 && ln -s ../usr/bin/bash /out/bin/bash && ln -s ../../bin/busybox /out/usr/bin/env \
 && mkdir -p /out/usr/lib/locale && cp -r /usr/lib/locale/C.utf8 /out/usr/lib/locale/ \
 && install -D -m 644 /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ca-certificates.crt \
 && install -m 755 /tmp/codex-agent /out/bin/codex-agent \
 && printf 'root:x:0:0::/root:/bin/bash\nagent:x:10001:10001::/home/agent:/bin/bash\n' > /out/etc/passwd \
 && printf 'root:x:0:\nagent:x:10001:\n' > /out/etc/group

FROM scratch AS codex-agent
COPY --from=codex-root /out/ /
ENV PATH=/bin:/usr/bin HOME=/home/agent
USER 10001:10001
WORKDIR /workspace
CMD ["/bin/codex-agent"]

FROM builder AS model-server-builder
RUN target="$(uname -m)-unknown-linux-gnu" && export RUSTFLAGS="-C target-feature=+crt-static" \
 && cargo build --profile "$PROFILE" --locked --target "$target" --package spillway-model-server \
 && cp "target/$target/$PROFILE/spillway-model-server" /

FROM scratch AS model-server
COPY --from=model-server-builder /spillway-model-server /bin/spillway-model-server
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/bin/spillway-model-server"]

# The two binaries and nothing else. No CA bundle: the public authorities, which the gateway trusts for model providers and the
# controller for webhooks, are compiled into `spillway`. Other CAs come from Kubernetes: that of the API server from the pod's
# service account, and that of gateways and governor from Spillway's own Secret or ConfigMap.
# No file at /spillway: the sidecar of every agent runs this image and mounts its volumes below that folder.
FROM scratch AS spillway
COPY --from=builder /spillway /bin/spillway
COPY --from=builder /spillway-agent /spillway-agent
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/bin/spillway"]
