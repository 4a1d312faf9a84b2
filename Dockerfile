# Not run on the machines that test Spillway: they have no Docker engine. What the tests use are the same images made by
# e2e/images/build.sh from the same static binary; keep the two alike (path, user, entry point).
#
#   docker build -t spillway/spillway:dev .
#   docker build -t spillway/demo-agent:dev --target demo-agent .

FROM rust:1.95-bookworm AS builder
WORKDIR /src
COPY . .
# Static, so that the last stage needs nothing but the binary. --target: the flag must not reach build scripts and proc macros.
RUN target="$(uname -m)-unknown-linux-gnu" \
 && RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --target "$target" --bin spillway \
 && cp "target/$target/release/spillway" /spillway

FROM debian:bookworm-slim AS agent-root
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

# No CA bundle: the operator talks to the API server only, with the CA of its service account.
FROM scratch AS spillway
COPY --from=builder /spillway /spillway
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/spillway"]
